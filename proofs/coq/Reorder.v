(** Lists of numbered things in two orders: if what they order differently commutes, they lead
    to the same. *)
From stdpp Require Import prelude functions list.

(** [[x; y] `sublist_of` l]: [x] comes before [y]. *)
Lemma sub1 {A} (x : A) l : x ∈ l → [x] `sublist_of` l.
Proof.
  intros (l1&l2&->)%elem_of_list_split. apply sublist_inserts_l, sublist_skip, sublist_nil_l.
Qed.
Lemma sub_in {A} (x : A) l k : l `sublist_of` k → x ∈ l → x ∈ k.
Proof. intros H Hx. by eapply elem_of_submseteq; [|apply sublist_submseteq]. Qed.
Lemma sub2_app {A} (x y : A) l k : [x; y] `sublist_of` l ++ k →
  [x; y] `sublist_of` l ∨ (x ∈ l ∧ y ∈ k) ∨ [x; y] `sublist_of` k.
Proof.
  intros (l1&l2&E&H1&H2)%sublist_app_r. destruct l1 as [|a [|b l1]]; simplify_eq/=.
  - by right; right.
  - right; left. split; eapply sub_in; try done; left.
  - destruct l1, l2; simplify_eq/=. by left.
Qed.
Lemma sub2_lookup {A} (x y : A) l : [x; y] `sublist_of` l → ∃ a b, l !! a = Some x ∧ l !! b = Some y ∧ a < b.
Proof.
  induction l as [|z l IH]; intros H; [by inversion H|]. inversion H as [|? ? ? H'|? ? ? H']; subst.
  - assert (y ∈ l) as [b Hb]%elem_of_list_lookup by (eapply sub_in; [done|left]). exists 0, (S b). split_and!; [done..|lia].
  - destruct (IH H') as (a&b&?&?&?). exists (S a), (S b). split_and!; [done..|lia].
Qed.
Lemma sub2_seq (P : nat → Prop) `{∀ i, Decision (P i)} a n x y : [x; y] `sublist_of` filter P (seq a n) → x < y.
Proof.
  revert a. induction n as [|n IH]; intros a H'; simpl in H'; [by inversion H'|].
  assert (x < y ∨ [x; y] `sublist_of` filter P (seq (S a) n)) as [?|?]; [|done|eauto].
  rewrite filter_cons in H'. case_decide; [|auto]. inversion H' as [|? ? ? H1|? ? ? H1]; subst; [left|auto].
  assert (y ∈ filter P (seq (S a) n)) as Hy by (eapply sub_in; [done|left]).
  apply elem_of_list_filter in Hy as [_ Hy%elem_of_seq]. lia.
Qed.

Section reorder.
Context {A : Type} (f : nat → A → A).
Definition run_all (l : list nat) (v : A) : A := foldl (λ v i, f i v) v l.
Lemma run_all_app l k v : run_all (l ++ k) v = run_all k (run_all l v).
Proof. unfold run_all. apply foldl_app. Qed.
Lemma run_all_past i l v : (∀ j v, j ∈ l → f i (f j v) = f j (f i v)) → run_all l (f i v) = f i (run_all l v).
Proof.
  revert v. induction l as [|j l IH]; intros v H; [done|]. unfold run_all in *. simpl.
  rewrite <-H by left. apply IH. intros k w Hk. apply H. by right.
Qed.
Lemma reorder l k v : l ≡ₚ k →
  (∀ i j w, [i; j] `sublist_of` l → [j; i] `sublist_of` k → f i (f j w) = f j (f i w)) →
  run_all l v = run_all k v.
Proof.
  revert k v. induction l as [|i l IH]; intros k v Hp Hc.
  - by apply Permutation_nil in Hp as ->.
  - assert (i ∈ k) as (p&q&->)%elem_of_list_split by (rewrite <-Hp; left).
    rewrite <-Permutation_middle in Hp. apply Permutation_cons_inv in Hp.
    rewrite run_all_app. change (run_all (i :: l) v) with (run_all l (f i v)).
    change (run_all (i :: q) (run_all p v)) with (run_all q (f i (run_all p v))).
    rewrite <-run_all_past, <-run_all_app.
    + apply IH; [done|]. intros a b w Ha Hb. apply Hc; [by apply sublist_cons|].
      etrans; [exact Hb|]. apply sublist_app; [done|]. by apply sublist_cons.
    + intros j w Hj. apply Hc.
      * apply sublist_skip, sub1. rewrite Hp. apply elem_of_app. by left.
      * apply (sublist_app [j] p [i] (i :: q)); [by apply sub1|]. apply sublist_skip, sublist_nil_l.
Qed.
Lemma run_all_ext (g : nat → A → A) l v : (∀ i w, i ∈ l → f i w = g i w) → run_all l v = foldl (λ v i, g i v) v l.
Proof.
  revert v. induction l as [|i l IH]; intros v H; [done|]. unfold run_all in *. simpl. rewrite H by left.
  apply IH. intros. apply H. by right.
Qed.
End reorder.

(** ** Choosing by number *)
Lemma filter_ext_in (P Q : nat → Prop) `{∀ i, Decision (P i), ∀ i, Decision (Q i)} (l : list nat) :
  (∀ i, i ∈ l → P i ↔ Q i) → filter P l = filter Q l.
Proof.
  induction l as [|i l IH]; intros HPQ; [done|]. rewrite !filter_cons, IH by (intros; apply HPQ; by right).
  specialize (HPQ i (elem_of_list_here _ _)). by repeat case_decide; try tauto.
Qed.
Lemma filter_split (P : nat → Prop) `{∀ i, Decision (P i)} (l : list nat) : l ≡ₚ filter (λ i, ¬ P i) l ++ filter P l.
Proof.
  induction l as [|i l IH]; [done|]. rewrite !filter_cons. repeat case_decide; try tauto.
  - simpl. by f_equiv.
  - rewrite <-Permutation_middle. by f_equiv.
Qed.
Lemma filter_concat (g : nat → nat) (L l : list nat) : NoDup L →
  filter (λ i, g i ∈ L) l ≡ₚ concat ((λ u, filter (λ i, g i = u) l) <$> L).
Proof.
  induction 1 as [|u L Hu HL IH]; csimpl.
  - induction l as [|i l IHl]; [done|]. rewrite filter_cons. case_decide as Hi; [by apply elem_of_nil in Hi|done].
  - rewrite <-IH. clear IH. induction l as [|i l IHl]; [done|]. rewrite !filter_cons.
    destruct (decide (g i = u)) as [->|Hn]; [rewrite decide_True, decide_False by (done || left); simpl; by f_equiv|].
    destruct (decide (g i ∈ L)).
    + rewrite decide_True by (by right). rewrite <-Permutation_middle. by f_equiv.
    + by rewrite decide_False by (by rewrite elem_of_cons; intros [?|?]).
Qed.
Lemma sub2_concat (g : nat → list nat) (w : nat → nat) L i j : (∀ t k, k ∈ g t → w k = t) →
  [i; j] `sublist_of` concat (g <$> L) → (∃ t, [i; j] `sublist_of` g t) ∨ [w i; w j] `sublist_of` L.
Proof.
  intros Hg. induction L as [|t L IH]; csimpl; intros Hs; [by inversion Hs|].
  apply sub2_app in Hs as [Hs|[[Hi Hj]|Hs]]; [by left; eauto| |].
  - right. rewrite (Hg _ _ Hi). apply sublist_skip, sub1. apply elem_of_list_In, in_concat in Hj as (l'&Hl&Hj).
    apply elem_of_list_In, elem_of_list_fmap in Hl as (u&->&Hu). apply elem_of_list_In in Hj. by rewrite (Hg _ _ Hj).
  - destruct (IH Hs) as [?|?]; [by left|right; by apply sublist_cons].
Qed.
Lemma seq_lt n i : i ∈ seq 0 n ↔ i < n.
Proof. rewrite elem_of_seq. lia. Qed.
Lemma sub2_seq' n i j : [i; j] `sublist_of` seq 0 n → i < j.
Proof.
  intros Hs. apply (sub2_seq (λ _, True) 0 n). replace (filter (λ _, True) (seq 0 n)) with (seq 0 n); [done|].
  clear. induction (seq 0 n) as [|k l IH]; [done|]. rewrite filter_cons. by rewrite decide_True, <-IH.
Qed.
Lemma existsb_ext_in {A} (f g : A → bool) l : (∀ x, x ∈ l → f x = g x) → existsb f l = existsb g l.
Proof.
  induction l as [|x l IH]; intros H; simpl; [done|]. rewrite H by left. f_equal. apply IH. intros. apply H. by right.
Qed.

Lemma fmap_ext_in (f g : nat → list nat) (l : list nat) : (∀ t, t ∈ l → f t = g t) → f <$> l = g <$> l.
Proof.
  induction l as [|t l IH]; intros H; csimpl; [done|]. f_equal; [apply H; left|]. apply IH. intros. apply H. by right.
Qed.
Lemma last_or_none {A} (f : A → bool) l :
  (∀ x, x ∈ l → f x = false) ∨ ∃ a x b, l = a ++ x :: b ∧ f x = true ∧ ∀ y, y ∈ b → f y = false.
Proof.
  induction l as [|x l [IH|(a&y&b&->&?&?)]]; [left; by intros ? ?%elem_of_nil| |right; by exists (x :: a), y, b].
  destruct (f x) eqn:E; [right; by exists [], x, l|left]. by intros y [->|?]%elem_of_cons; auto.
Qed.
