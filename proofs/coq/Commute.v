(** Operations that touch different bytes commute: the effects of what survives, applied in
    any order that keeps dependent operations in the order of their commits, lead to what
    they lead to in the order of their commits. *)
From stdpp Require Import prelude functions list sorting.
From Steadfast Require Import Disk Replay Journal Absorb.

(** ** Selections: [m] marks elements of a list by their places *)
Section sel.
Context {A : Type}.
Implicit Types (m : list bool) (l : list A).
Fixpoint sel m l : list A :=
  match m, l with b :: m, x :: l => if b then x :: sel m l else sel m l | _, _ => [] end.
Definition marked m (i : nat) : Prop := m !! i = Some true.
Definition mask (n : nat) (P : nat → Prop) `{∀ i, Decision (P i)} : list bool :=
  (λ i, bool_decide (P i)) <$> seq 0 n.

Lemma mask_length n P `{∀ i, Decision (P i)} : length (mask n P) = n.
Proof. unfold mask. by rewrite fmap_length, seq_length. Qed.
Lemma mask_S n P `{∀ i, Decision (P i)} : mask (S n) P = mask n P ++ [bool_decide (P n)].
Proof. unfold mask. by rewrite seq_S, fmap_app. Qed.
Lemma mask_ext n P Q `{∀ i, Decision (P i)} `{∀ i, Decision (Q i)} : (∀ i, i < n → P i ↔ Q i) → mask n P = mask n Q.
Proof.
  intros H'. induction n as [|n IH]; [done|]. rewrite !mask_S, IH by (intros; apply H'; lia). do 2 f_equal.
  apply bool_decide_ext, H'. lia.
Qed.
Lemma marked_mask n P `{∀ i, Decision (P i)} i : marked (mask n P) i ↔ i < n ∧ P i.
Proof.
  unfold marked, mask. rewrite list_lookup_fmap. destruct (decide (i < n)).
  - rewrite lookup_seq_lt by done. simpl. split; [|intros [_ ?]; by rewrite bool_decide_eq_true_2].
    intros [= ?%bool_decide_eq_true]. done.
  - rewrite lookup_seq_ge by lia. split; [done|lia].
Qed.
Lemma marked_all n m i : marked (replicate n true ++ m) i ↔ i < n ∨ n ≤ i ∧ marked m (i - n).
Proof.
  unfold marked. destruct (decide (i < n)).
  - rewrite lookup_app_l by (by rewrite replicate_length). rewrite lookup_replicate_2 by done. split; [auto|done].
  - rewrite lookup_app_r by (rewrite replicate_length; lia). rewrite replicate_length. split; [auto with lia|].
    intros [?|[_ ?]]; [lia|done].
Qed.
Lemma marked_lt m i : marked m i → i < length m.
Proof. apply lookup_lt_Some. Qed.
Lemma sel_nil_r m : sel m [] = [].
Proof. by destruct m as [|[]]. Qed.
Lemma sel_app m m' l l' : length m = length l → sel (m ++ m') (l ++ l') = sel m l ++ sel m' l'.
Proof.
  revert m. induction l as [|x l IH]; intros [|b m]; simpl; try done.
  intros [= ?]. destruct b; simpl; by rewrite IH.
Qed.
Lemma sel_all n l : length l = n → sel (replicate n true) l = l.
Proof. intros <-. induction l; simpl; by f_equal. Qed.
Lemma sel_all_app m l l' : sel (replicate (length l) true ++ m) (l ++ l') = l ++ sel m l'.
Proof. rewrite sel_app by (by rewrite replicate_length). by rewrite sel_all. Qed.
Lemma sel_more m l l' : length m ≤ length l → sel m (l ++ l') = sel m l.
Proof.
  revert m. induction l as [|x l IH]; intros [|b m]; simpl; intros H; try done; [lia|].
  by rewrite IH by lia.
Qed.
Lemma sel_sublist m l : sel m l `sublist_of` l.
Proof.
  revert m. induction l as [|x l IH]; intros [|[] m]; simpl; try (by constructor); auto using sublist_nil_l.
Qed.
Lemma sel_mono m m' l : (∀ i, marked m i → marked m' i) → sel m l `sublist_of` sel m' l.
Proof.
  revert m'. revert l. induction m as [|b m IH]; intros l m' H; [apply sublist_nil_l|].
  destruct l as [|x l]; [apply sublist_nil_l|]. destruct m' as [|b' m'].
  - specialize (IH l [] (λ i, H (S i))). destruct b; [by specialize (H 0 eq_refl)|]. destruct l; done.
  - specialize (IH l m' (λ i, H (S i))). destruct b; simpl.
    + specialize (H 0 eq_refl). injection H as ->. by constructor.
    + destruct b'; [by constructor|done].
Qed.
Lemma sel_mask l P `{∀ i, Decision (P i)} : sel (mask (length l) P) l = omap (l !!.) (filter P (seq 0 (length l))).
Proof.
  induction l as [|x l IH] using rev_ind; [done|].
  rewrite app_length, Nat.add_1_r, mask_S, seq_S, sel_app, IH, filter_app, omap_app by apply mask_length. f_equal.
  - apply list_omap_ext. assert (Hlt : ∀ i, i ∈ filter P (seq 0 (length l)) → i < length l).
    { intros i [_ Hi%elem_of_seq]%elem_of_list_filter. lia. }
    revert Hlt. generalize (filter P (seq 0 (length l))) as k. induction k as [|i k IH']; intros Hlt; [done|]. constructor.
    + symmetry. apply lookup_app_l, Hlt. left.
    + apply IH'. intros j Hj. apply Hlt. by right.
  - simpl. rewrite filter_cons. simpl. case_bool_decide; case_decide; try done. simpl.
    by rewrite lookup_app_r, Nat.sub_diag by lia.
Qed.
End sel.

(** ** Orders *)
Section order.
Context {A : Type} (R : A → A → Prop).
(** [StronglySorted R l]: whatever stands before another in [l] has [R] to it. *)
Lemma ssorted_app l1 l2 : StronglySorted R l1 → StronglySorted R l2 →
  (∀ a c, a ∈ l1 → c ∈ l2 → R a c) → StronglySorted R (l1 ++ l2).
Proof.
  intros H1 H2 H. induction H1 as [|a l1 H1 IH Ha]; simpl; [done|]. constructor.
  - apply IH. intros b c ??. apply H; [by right|done].
  - apply Forall_app. split; [done|]. apply Forall_forall. intros c ?. apply H; [by left|done].
Qed.
Lemma ssorted_del l1 a l2 : StronglySorted R (l1 ++ a :: l2) → StronglySorted R (l1 ++ l2) ∧ ∀ c, c ∈ l1 → R c a.
Proof.
  intros H. split; [|intros c Hc; eapply elem_of_StronglySorted_app; [exact H|done|by left]].
  apply ssorted_app; [by eapply StronglySorted_app_inv_l| |].
  - apply StronglySorted_app_inv_r in H. by inversion H.
  - intros c d ??. eapply elem_of_StronglySorted_app; [exact H|done|by right].
Qed.
Lemma ssorted_filter P `{∀ x, Decision (P x)} l : StronglySorted R l → StronglySorted R (filter P l).
Proof.
  intros H'. induction H' as [|a l H1 IH Ha]; [constructor|]. rewrite filter_cons. case_decide; [|done]. constructor; [done|].
  apply Forall_forall. intros c [_ Hc]%elem_of_list_filter. by eapply Forall_forall in Ha.
Qed.
Lemma ssorted_imp (S : A → A → Prop) l : (∀ a c, R a c → S a c) → StronglySorted R l → StronglySorted S l.
Proof. intros Hi H. induction H as [|a l H1 IH Ha]; constructor; [done|]. eapply Forall_impl; [exact Ha|auto]. Qed.
End order.
Lemma ssorted_seq n k : StronglySorted lt (seq n k).
Proof.
  revert n. induction k as [|k IH]; intros n; simpl; constructor; [done|].
  apply Forall_forall. intros i Hi%elem_of_seq. lia.
Qed.

(** Folds whose steps commute if they are independent. Elements are named by their places in
    a first order: [l2] is sorted. In [l1] only independent ones stand in another order. *)
Section any_order.
Context {X E : Type} (eqv : X → X → Prop) `{!Equivalence eqv} (step : X → E → X) (ind : E → E → Prop).
Hypothesis step_eqv : ∀ x y e, eqv x y → eqv (step x e) (step y e).
Hypothesis step_comm : ∀ x e1 e2, ind e1 e2 → eqv (step (step x e1) e2) (step (step x e2) e1).
Lemma fold_eqv x y l : eqv x y → eqv (foldl step x l) (foldl step y l).
Proof. revert x y. induction l as [|e l IH]; intros x y H; [done|]. simpl. by apply IH, step_eqv. Qed.
Lemma fold_front x e l : Forall (λ e', ind e' e) l → eqv (foldl step x (l ++ [e])) (foldl step x (e :: l)).
Proof.
  revert x. induction l as [|e' l IH]; intros x H; [done|]. apply Forall_cons in H as [H1 H2]. simpl in *.
  etrans; [by apply IH|]. by apply fold_eqv, step_comm.
Qed.
Theorem any_order (f : nat → E) l1 l2 x :
  l1 ≡ₚ l2 → StronglySorted lt l2 → StronglySorted (λ a c, c < a → ind (f c) (f a)) l1 →
  eqv (foldl step x (f <$> l1)) (foldl step x (f <$> l2)).
Proof.
  revert l2 x. induction l1 as [|a l1 IH]; intros l2 x Hp H2 H1; [by apply Permutation_nil_l in Hp as <-|].
  assert (a ∈ l2) as (p&q&->)%elem_of_list_split by (rewrite <-Hp; by left).
  apply ssorted_del in H2 as [H2 Hlt]. apply Permutation_cons_app_inv in Hp.
  inversion H1 as [|? ? H1' Ha]; subst. csimpl. etrans; [by apply IH|].
  rewrite !fmap_app, fmap_cons, (cons_middle (f a)), app_assoc, !foldl_app. apply fold_eqv. rewrite <-foldl_app.
  symmetry. apply (fold_front x (f a)), Forall_fmap, Forall_forall. intros c Hc. simpl.
  eapply Forall_forall in Ha; [apply Ha, Hlt, Hc|]. rewrite Hp. apply elem_of_app. by left.
Qed.
End any_order.

(** ** Effects *)
Section commute.
Context {off byte : Type} (zero : byte).
Notation eff := (eff off byte).
Notation lstep := (@lstep off byte zero).
Notation lfold := (@lfold off byte zero).

#[global] Instance ceq_equiv : Equivalence (@ceq off byte).
Proof. split; [intros x; apply ceq_refl|intros x y; apply ceq_sym|intros x y z; apply ceq_trans]. Qed.
(** On one block, only patches that leave each other's bytes alone are independent: a free, a
    new life, and data written around the log conflict with whatever touches the block. *)
Definition indep (e1 e2 : eff) : Prop :=
  match e1, e2 with
  | ENone, _ | _, ENone => True
  | EPatch false p, EPatch false q => ∀ o, p o = None ∨ q o = None
  | _, _ => False
  end.
Lemma indep_comm x e1 e2 : indep e1 e2 → ceq (lstep (lstep x e1) e2) (lstep (lstep x e2) e1).
Proof.
  destruct e1 as [|[] p| |], e2 as [|[] q| |]; simpl; try done; intros H; try apply ceq_refl.
  destruct x; simpl; [|done]. intros o. unfold ov. by destruct (H o) as [-> | ->]; destruct (p o), (q o).
Qed.
Lemma lfold_app x l k : lfold x (l ++ k) = lfold (lfold x l) k.
Proof. apply foldl_app. Qed.
Theorem contents_any_order (f : nat → eff) l1 l2 x :
  l1 ≡ₚ l2 → StronglySorted lt l2 → StronglySorted (λ a c, c < a → indep (f c) (f a)) l1 →
  ceq (lfold x (f <$> l1)) (lfold x (f <$> l2)).
Proof. apply any_order; [apply _| |apply indep_comm]. intros. by apply lstep_ceq. Qed.

(** Transactions one after the other, each with its operations in the order of commits. *)
Definition members (own : nat → nat) (n t : nat) : list nat := filter (λ i, own i = t) (seq 0 n).
Definition in_order (own : nat → nat) (n : nat) (T : list nat) : list nat := concat (members own n <$> T).
Lemma elem_members own n t i : i ∈ members own n t ↔ i < n ∧ own i = t.
Proof. unfold members. rewrite elem_of_list_filter, elem_of_seq. intuition lia. Qed.
Lemma elem_in_order own n T i : i ∈ in_order own n T ↔ i < n ∧ own i ∈ T.
Proof.
  unfold in_order. induction T as [|t T IH]; csimpl; [split; [by intros ?%elem_of_nil|by intros [_ ?%elem_of_nil]]|].
  rewrite elem_of_app, elem_members, IH, elem_of_cons. tauto.
Qed.
Lemma NoDup_in_order own n T : NoDup T → NoDup (in_order own n T).
Proof.
  unfold in_order. induction 1 as [|t T Ht HT IH]; csimpl; [constructor|]. apply NoDup_app.
  split_and!; [apply NoDup_filter, NoDup_seq| |done].
  intros i [_ <-]%elem_members Hi. by apply (elem_in_order own n T) in Hi as [_ ?].
Qed.
Lemma ssorted_in_order (R : nat → nat → Prop) own n T :
  (∀ a c, a < c → own a = own c → R a c) →
  (∀ p q a c, p < q → T !! p = Some (own a) → T !! q = Some (own c) → R a c) →
  StronglySorted R (in_order own n T).
Proof.
  intros H0. unfold in_order. induction T as [|t T IH]; intros H; csimpl; [constructor|]. apply ssorted_app.
  - unfold members. assert (StronglySorted lt (filter (λ i, own i = t) (seq 0 n))) as Hs by apply ssorted_filter, ssorted_seq.
    assert (Forall (λ i, own i = t) (filter (λ i, own i = t) (seq 0 n))) as Ho.
    { apply Forall_forall. by intros i [? _]%elem_of_list_filter. }
    induction Hs as [|a l Hl IHl Ha]; [constructor|]. apply Forall_cons in Ho as [Hoa Ho]. constructor; [by apply IHl|].
    apply Forall_forall. intros c Hc. eapply Forall_forall in Ha; [|done]. eapply Forall_forall in Ho; [|done]. simpl in Ho.
    apply H0; [done|congruence].
  - apply IH. intros p q a c Hpq Hp Hq. apply (H (S p) (S q)); [lia|done..].
  - intros a c [_ Ha]%elem_members Hc. apply (elem_in_order own n T) in Hc as [_ Hc].
    apply elem_of_list_lookup in Hc as [q Hq]. apply (H 0 (S q)); [lia|simpl; congruence|done].
Qed.
End commute.
