(** Images: the bytes of a record are those of its frozen transactions.

    Running transactions of all streams share the current image. A transaction owns a mask of
    it, and the sums that it adds to counters; when it closes it keeps the current image of
    that moment, which later operations do not change. A record carries the masks over into
    the committed image, and resolves sums against it in log order. Of some places the newest
    value counts, whichever transaction wrote it (a directory's times): no transaction owns them.
    Their value is that of the frozen image, too, but a transaction gives them up to one that closed
    later and is laid before. [Bytes] says what the log leads to.

    Memory is one array of places, of all blocks. A place is a bit or byte, or a counter as a
    whole: no operation writes a part of a counter. *)
From stdpp Require Import prelude functions list.
From Steadfast Require Import Replay Streams Reorder.

Section images.
Context {op stream place val : Type} `{!EqDecision stream} `{!EqDecision place}.
Context (plus : val → val → val) (zero : val).
Context (Hcomm : Comm (=) plus) (Hassoc : Assoc (=) plus) (Hzero : RightId (=) zero plus).
Notation bst := (@bst op stream).

(** ** Operations *)
Inductive edit := EWrite (o : place) (v : val) | EAdd (o : place) (d : val) | ELatest (o : place) (v : val).
Context (str : op → stream) (rel : op → op → Prop) (eds : op → list edit).

Definition ed1 (o : place) (v : val) (e : edit) : val :=
  match e with
  | EWrite p w | ELatest p w => if decide (p = o) then w else v
  | EAdd p d => if decide (p = o) then plus v d else v
  end.
(** What an operation makes of a place that holds [v]. *)
Definition pt (x : op) (o : place) (v : val) : val := foldl (ed1 o) v (eds x).
Definition is_wr (o : place) (e : edit) : bool := match e with EWrite p _ => bool_decide (p = o) | _ => false end.
Definition is_ad (o : place) (e : edit) : bool := match e with EAdd p _ => bool_decide (p = o) | _ => false end.
Definition is_lt (o : place) (e : edit) : bool := match e with ELatest p _ => bool_decide (p = o) | _ => false end.
Definition wr x o := existsb (is_wr o) (eds x).
Definition ad x o := existsb (is_ad o) (eds x).
Definition lt x o := existsb (is_lt o) (eds x).
Definition tch x o := wr x o || ad x o || lt x o.
(** The sum of what it adds. *)
Definition dl1 (o : place) (a : val) (e : edit) : val :=
  match e with EAdd p d => if decide (p = o) then plus a d else a | _ => a end.
Definition dl (x : op) (o : place) : val := foldl (dl1 o) zero (eds x).
(** Places in common, unless both add, or of both the newest value counts. *)
Definition clash (x y : op) (o : place) : bool :=
  (wr x o && tch y o) || (tch x o && wr y o) || (lt x o && ad y o) || (ad x o && lt y o).
(** Overlapping places always relate. *)
Context (Hov : ∀ x y o, clash x y o = true → rel x y).

#[global] Instance phase_eq : EqDecision phase.
Proof. solve_decision. Defined.

(** ** Images *)
Record mem := Mem {
  cur : place → val;             (** the current image *)
  com : place → val;             (** the committed image *)
  msk : nat → place → bool;      (** of a transaction: what it owns *)
  adm : nat → place → bool;      (** the counters that it adds to *)
  sum : nat → place → val;       (** what it adds *)
  lat : nat → place → bool;      (** where the newest value counts *)
  frz : nat → place → val;       (** the image that it froze *)
  que : list nat;                (** transactions in the order in which they closed *)
  mom : nat → nat;               (** operations committed when it closed (proof only) *)
  log : list (place → option val) }.  (** the records' patches *)

(** Carries a transaction's part over into an image. *)
Definition lay1 (m : mem) (c : place → val) (t : nat) : place → val := λ o,
  if msk m t o || lat m t o then frz m t o else plus (c o) (sum m t o).
Definition lay (m : mem) (ts : list nat) : place → val := foldl (lay1 m) (com m) ts.
(** The record's patch: the places that its transactions name, with their new contents; and
    any [gap] between them, because one range is shorter than two. *)
Definition patch (m : mem) (ts : list nat) (gap : place → bool) : place → option val := λ o,
  if existsb (λ t, msk m t o || adm m t o || lat m t o) ts || gap o then Some (lay m ts o) else None.

(** How many closed before it. *)
Fixpoint pos (q : list nat) (t : nat) : nat :=
  match q with [] => 0 | u :: q => if decide (u = t) then 0 else S (pos q t) end.
(** One of [ts] closed after [u], and there its newest value counts. *)
Definition overtaken (m : mem) (ts : list nat) (u : nat) (o : place) : bool :=
  existsb (λ t, lat m t o && (pos (que m) u <? pos (que m) t)) ts.

Definition upd {A} (f : nat → A) (t : nat) (a : A) : nat → A := λ u, if decide (u = t) then a else f u.

Inductive istep : bst * mem → bst * mem → Prop :=
(* [L] are the transactions that become one *)
| i_commit s s' m x (L : list nat) :
    bstep str rel s s' → hist s' = hist s ++ [x] →
    let id := own s' (length (hist s)) in
    NoDup L → (∀ u, u ∈ L ↔ ph s u = PRun ∧ (u = id ∨ ph s' u = PNone)) →
    istep (s, m) (s', Mem (λ o, pt x o (cur m o)) (com m)
      (upd (msk m) id (λ o, wr x o || existsb (λ u, msk m u o) L))
      (upd (adm m) id (λ o, ad x o || existsb (λ u, adm m u o) L))
      (upd (sum m) id (λ o, foldr (λ u a, plus a (sum m u o)) (dl x o) L))
      (upd (lat m) id (λ o, lt x o || existsb (λ u, lat m u o) L)) (frz m) (que m) (mom m) (log m))
| i_close s s' m t :
    bstep str rel s s' → hist s' = hist s → ph s t = PRun → ph s' t = PClosed →
    istep (s, m) (s', Mem (cur m) (com m) (msk m) (adm m) (sum m) (lat m) (upd (frz m) t (cur m))
      (que m ++ [t]) (upd (mom m) t (length (hist s))) (log m))
(* a closed transaction that is not laid gives newest values up to laid ones that closed later *)
| i_lay s s' m ts gap :
    bstep str rel s s' → recs s' = recs s ++ [ts] → ts `sublist_of` que m →
    istep (s, m) (s', Mem (cur m) (lay m ts) (msk m) (adm m) (sum m)
      (λ u o, lat m u o && negb (bool_decide (ph s' u = PClosed) && overtaken m ts u o))
      (frz m) (que m) (mom m) (log m ++ [patch m ts gap])).
Inductive isteps : bst * mem → bst * mem → Prop :=
| is_nil c : isteps c c
| is_cons c1 c2 c3 : istep c1 c2 → isteps c2 c3 → isteps c1 c3.
Context (d0 : place → val).
Definition iinit (c : bst * mem) : Prop :=
  binit c.1 ∧ (∀ o, cur c.2 o = d0 o) ∧ (∀ o, com c.2 o = d0 o) ∧ log c.2 = [] ∧ que c.2 = [].

(** ** One operation at one place *)
Lemma fold_no o l v : existsb (is_wr o) l = false → existsb (is_lt o) l = false →
  foldl (ed1 o) v l = plus v (foldl (dl1 o) zero l).
Proof.
  intros Hw Hl. assert (∀ a v, foldl (ed1 o) (plus v a) l = plus v (foldl (dl1 o) a l)) as H.
  { clear v. revert Hw Hl. induction l as [|e l IH]; simpl; intros Hw Hl a v; [done|].
    apply orb_false_iff in Hw as [Hw1 Hw], Hl as [Hl1 Hl]. destruct e as [p w|p d|p w]; simpl in *.
    - apply bool_decide_eq_false in Hw1. rewrite decide_False by done. by apply IH.
    - case_decide; [|by apply IH]. rewrite <-(assoc plus). by apply IH.
    - apply bool_decide_eq_false in Hl1. rewrite decide_False by done. by apply IH. }
  rewrite <-H. by rewrite (right_id zero plus).
Qed.
Lemma pt_add x o v : wr x o = false → lt x o = false → pt x o v = plus v (dl x o).
Proof. apply fold_no. Qed.
Lemma pt_const x o v v' : wr x o || lt x o = true → pt x o v = pt x o v'.
Proof.
  unfold pt, wr, lt. revert v v'. induction (eds x) as [|e l IH]; simpl; intros v v' H; [done|].
  destruct (existsb (is_wr o) l || existsb (is_lt o) l) eqn:E; [by apply IH|].
  apply orb_false_iff in E as [E1 E2]. rewrite E1, E2, !orb_false_r in H.
  destruct e as [p w|p d|p w]; simpl in *; [| |]; try done;
    rewrite ?orb_false_r, ?orb_false_l in H; apply bool_decide_eq_true in H; by rewrite !decide_True.
Qed.
Lemma dl_none x o : ad x o = false → dl x o = zero.
Proof.
  unfold ad, dl. generalize zero as a. induction (eds x) as [|e l IH]; simpl; intros a H; [done|].
  apply orb_false_iff in H as [H1 H]. destruct e; simpl in *; try by apply IH.
  apply bool_decide_eq_false in H1. rewrite decide_False by done. by apply IH.
Qed.
Lemma pt_none x o v : tch x o = false → pt x o v = v.
Proof.
  intros [[Hw Ha]%orb_false_iff Hl]%orb_false_iff. by rewrite pt_add, dl_none, (right_id zero plus).
Qed.
Lemma pt_comm x y o v : clash x y o = false → lt x o = false → pt x o (pt y o v) = pt y o (pt x o v).
Proof.
  intros Hc Hl. destruct (tch x o) eqn:Hx; [|by rewrite !(pt_none x)].
  destruct (tch y o) eqn:Hy; [|by rewrite !(pt_none y)].
  unfold clash in Hc. rewrite Hx, Hy, Hl in Hc. destruct (wr x o) eqn:Ex, (wr y o) eqn:Ey; try done.
  assert (ad x o = true) as Ha by (unfold tch in Hx; rewrite Ex, Hl in Hx; by destruct (ad x o)).
  simpl in Hc. rewrite Ha in Hc. simpl in Hc. rewrite !(pt_add x), !(pt_add y) by done.
  rewrite <-!(assoc plus). f_equal. apply (comm plus).
Qed.

(** ** Operations by their numbers *)
Definition fo (H : list op) (o : place) (i : nat) (v : val) : val :=
  match H !! i with Some x => pt x o v | None => v end.
Definition anyb (H : list op) (p : op → bool) (l : list nat) : bool :=
  existsb (λ i, match H !! i with Some x => p x | None => false end) l.
Definition tot (H : list op) (o : place) (l : list nat) : val :=
  foldr (λ i a, plus a (match H !! i with Some x => dl x o | None => zero end)) zero l.
(** The operations of a transaction; the transactions of the first [k] records. *)
Definition idx (s : bst) (t : nat) : list nat := filter (λ i, own s i = t) (seq 0 (length (hist s))).
Definition laid_in (s : bst) (k : nat) : list nat := concat (take k (recs s)).
(** What patches lead to. *)
Definition after (l : list (place → option val)) (o : place) : val :=
  foldl (λ v p, match p o with Some w => w | None => v end) (d0 o) l.

Lemma idx_elem s t i : i ∈ idx s t ↔ own s i = t ∧ i < length (hist s).
Proof. unfold idx. by rewrite elem_of_list_filter, seq_lt. Qed.

Lemma fo_snoc H x o i v : i < length H → fo (H ++ [x]) o i v = fo H o i v.
Proof. intros Hi. unfold fo. by rewrite lookup_app_l. Qed.
Lemma run_snoc H x o l v : (∀ i, i ∈ l → i < length H) → run_all (fo (H ++ [x]) o) l v = run_all (fo H o) l v.
Proof. intros Hl. apply run_all_ext. intros i w Hi. by apply fo_snoc, Hl. Qed.
Lemma fo_comm H o i j w :
  (∀ x y, H !! i = Some x → H !! j = Some y → clash x y o = false ∧ lt x o = false) →
  fo H o i (fo H o j w) = fo H o j (fo H o i w).
Proof.
  unfold fo. intros Hc. destruct (H !! i) as [x|] eqn:Ex; [|done]. destruct (H !! j) as [y|] eqn:Ey; [|done].
  destruct (Hc x y) as [? ?]; [done..|]. by apply pt_comm.
Qed.
Lemma anyb_spec H p l : anyb H p l = true ↔ ∃ i x, i ∈ l ∧ H !! i = Some x ∧ p x = true.
Proof.
  unfold anyb. rewrite existsb_exists. split.
  - intros (i&Hi&Hp). apply elem_of_list_In in Hi. destruct (H !! i) as [x|] eqn:E; [|done]. eauto.
  - intros (i&x&Hi&Hx&Hp). exists i. rewrite Hx. by rewrite <-elem_of_list_In.
Qed.
Lemma anyb_false H p l i x : anyb H p l = false → i ∈ l → H !! i = Some x → p x = false.
Proof.
  intros Hf Hi Hx. apply not_true_iff_false. intros Hp. apply not_true_iff_false in Hf. apply Hf, anyb_spec. eauto.
Qed.
Lemma anyb_app H p l k : anyb H p (l ++ k) = anyb H p l || anyb H p k.
Proof. apply existsb_app. Qed.
Lemma anyb_perm H p l k : l ≡ₚ k → anyb H p l = anyb H p k.
Proof. intros Hl. apply eq_true_iff_eq. rewrite !anyb_spec. by setoid_rewrite Hl. Qed.
Lemma anyb_snoc H x p l : (∀ i, i ∈ l → i < length H) → anyb (H ++ [x]) p l = anyb H p l.
Proof.
  intros Hl. apply eq_true_iff_eq. rewrite !anyb_spec. split; intros (i&y&Hi&Hy&?); exists i, y; (split; [done|]);
    (split; [|done]); specialize (Hl i Hi); by rewrite lookup_app_l in *.
Qed.
Lemma tot_app H o l k : tot H o (l ++ k) = plus (tot H o k) (tot H o l).
Proof.
  induction l as [|i l IH]; simpl; [by rewrite (right_id zero plus)|]. rewrite IH. by rewrite (assoc plus).
Qed.
Lemma tot_perm H o l k : l ≡ₚ k → tot H o l = tot H o k.
Proof.
  induction 1; simpl; [done|by f_equal| |by etrans]. rewrite <-!(assoc plus). f_equal. apply (comm plus).
Qed.
Lemma tot_snoc H x o l : (∀ i, i ∈ l → i < length H) → tot (H ++ [x]) o l = tot H o l.
Proof.
  induction l as [|i l IH]; intros Hl; [done|]. simpl. rewrite IH by (intros; apply Hl; by right).
  by rewrite lookup_app_l by (apply Hl; left).
Qed.
(** Without writes, operations add their sums; with one, it does not matter what was there. *)
Lemma run_sum H o l v : anyb H (λ x, wr x o) l = false → anyb H (λ x, lt x o) l = false →
  run_all (fo H o) l v = plus v (tot H o l).
Proof.
  intros Hw Hl. revert v. induction l as [|i l IH]; intros v; simpl; [by rewrite (right_id zero plus)|].
  unfold run_all in *. simpl in *. apply orb_false_iff in Hw as [Hw1 Hw], Hl as [Hl1 Hl]. rewrite IH by done.
  unfold fo. destruct (H !! i) as [x|]; [|by rewrite (right_id zero plus)]. rewrite pt_add by done.
  rewrite <-(assoc plus). f_equal. apply (comm plus).
Qed.
Lemma run_const H o l v v' : anyb H (λ x, wr x o) l || anyb H (λ x, lt x o) l = true →
  run_all (fo H o) l v = run_all (fo H o) l v'.
Proof.
  revert v v'. induction l as [|i l IH]; intros v v' Hw; [done|]. unfold run_all in *. simpl in *.
  destruct (anyb H (λ x, wr x o) l || anyb H (λ x, lt x o) l) eqn:E; [by apply IH|].
  unfold anyb in *. apply orb_false_iff in E as [E1 E2]. rewrite E1, E2, !orb_false_r in Hw. f_equal.
  unfold fo. destruct (H !! i) as [x|]; [|done]. by apply pt_const.
Qed.
Lemma run_none H o l v : (∀ i x, i ∈ l → H !! i = Some x → tch x o = false) → run_all (fo H o) l v = v.
Proof.
  revert v. induction l as [|i l IH]; intros v Hn; [done|]. unfold run_all in *. simpl.
  rewrite IH by (intros; eapply Hn; [by right|done]). unfold fo. destruct (H !! i) as [x|] eqn:E; [|done].
  apply pt_none. eapply Hn; [left|done].
Qed.
(** Operations that do not touch a place may be left out. *)
Lemma run_filter H o (P Q : nat → Prop) `{∀ i, Decision (P i), ∀ i, Decision (Q i)} (l : list nat) v :
  (∀ i x, i ∈ l → H !! i = Some x → tch x o = true → P i ↔ Q i) →
  run_all (fo H o) (filter P l) v = run_all (fo H o) (filter Q l) v.
Proof.
  revert v. induction l as [|i l IH]; intros v Hpq; [done|].
  assert (Hl : ∀ v, run_all (fo H o) (filter P l) v = run_all (fo H o) (filter Q l) v).
  { intros w. apply IH. intros j x Hj. apply Hpq. by right. }
  assert (fo H o i v = v ∨ (P i ↔ Q i)) as Hi.
  { unfold fo. destruct (H !! i) as [x|] eqn:E; [|by left]. destruct (tch x o) eqn:Et; [right|left].
    - apply (Hpq i x); [left|done..].
    - by apply pt_none. }
  rewrite !filter_cons. destruct Hi as [Hi|Hi].
  - repeat case_decide; unfold run_all in *; simpl; rewrite ?Hi; apply Hl.
  - repeat case_decide; try tauto; unfold run_all in *; simpl; apply Hl.
Qed.

(** ** Moments *)
(** [t]'s newest value counts at [o]; or it writes there. *)
Definition lts (s : bst) (t : nat) (o : place) : bool := anyb (hist s) (λ x, lt x o) (idx s t).
Definition sets (s : bst) (t : nat) (o : place) : bool := anyb (hist s) (λ x, wr x o || lt x o) (idx s t).
(** When the last of [l] that does one of them closed. *)
Definition moment (s : bst) (f : nat → nat) (l : list nat) (o : place) : nat :=
  foldr (λ t n, (if sets s t o then f t else 0) `max` n) 0 l.
(** [v] is of the operations before that moment and those of [l]; each one that wrote or added before it is in [l]. *)
Definition good (s : bst) (f : nat → nat) (l : list nat) (o : place) (v : val) : Prop :=
  v = run_all (fo (hist s) o) (filter (λ i, i < moment s f l o ∨ own s i ∈ l) (seq 0 (length (hist s)))) (d0 o) ∧
  ∀ i x, hist s !! i = Some x → wr x o || ad x o = true → i < moment s f l o → own s i ∈ l.
(** With an operation there is what it relates to. *)
Definition down (s : bst) (l : list nat) : Prop := ∀ i j x y,
  i < j → hist s !! i = Some x → hist s !! j = Some y → rel x y → own s j ∈ l → own s i ∈ l.

Lemma anyb_idx s p t : anyb (hist s) p (idx s t) = true ↔ ∃ i x, own s i = t ∧ hist s !! i = Some x ∧ p x = true.
Proof.
  rewrite anyb_spec. split; intros (i&x&Hi&Hx&?); exists i, x; (split; [|done]).
  - by apply idx_elem in Hi as [? _].
  - apply idx_elem. split; [done|]. by eapply lookup_lt_Some.
Qed.
Lemma lts_sets s t o : lts s t o = true → sets s t o = true.
Proof. unfold lts, sets. rewrite !anyb_idx. intros (i&x&?&?&E). exists i, x. by rewrite E, orb_true_r. Qed.
Lemma moment_app s f l k o : moment s f (l ++ k) o = moment s f l o `max` moment s f k o.
Proof. unfold moment. induction l as [|t l IH]; simpl; [done|]. rewrite IH. lia. Qed.
Lemma moment_le s f l o t : t ∈ l → sets s t o = true → f t ≤ moment s f l o.
Proof. unfold moment. intros Ht E. induction Ht as [u l|u w l Ht IH]; simpl; [rewrite E|specialize (IH E)]; lia. Qed.
Lemma moment_max s f l o n : (∀ t, t ∈ l → sets s t o = true → f t ≤ n) → moment s f l o ≤ n.
Proof.
  unfold moment. induction l as [|t l IH]; simpl; intros Hn; [lia|].
  assert (foldr (λ t n, (if sets s t o then f t else 0) `max` n) 0 l ≤ n) by (apply IH; intros; apply Hn; [by right|done]).
  pose proof (Hn t (elem_of_list_here _ _)) as Ht. destruct (sets s t o); [specialize (Ht eq_refl)|]; lia.
Qed.
Lemma moment_ext s s' f f' l o : (∀ t, t ∈ l → sets s' t o = sets s t o ∧ f' t = f t) → moment s' f' l o = moment s f l o.
Proof.
  unfold moment. induction l as [|t l IH]; simpl; intros He; [done|]. rewrite IH by (intros; apply He; by right).
  by destruct (He t (elem_of_list_here _ _)) as [-> ->].
Qed.
Lemma good_same s s' f l o v : hist s' = hist s → own s' = own s → good s f l o v → good s' f l o v.
Proof. intros Eh Eo. unfold good, moment, sets, idx. by rewrite Eh, Eo. Qed.
Lemma filter_before (n l : nat) : n ≤ l → filter (λ i, i < n) (seq 0 l) = seq 0 n.
Proof.
  intros Hn. replace l with (n + (l - n)) by lia. rewrite seq_app, filter_app. simpl.
  rewrite (filter_ext_in _ (λ _, True)) by (intros i ?%seq_lt; tauto).
  rewrite (filter_ext_in (λ i, i < n) (λ _, False) (seq n _)) by (intros i ?%elem_of_seq; lia).
  assert (∀ k : list nat, filter (λ _, True) k = k ∧ filter (λ _, False) k = []) as Hk; [|destruct (Hk (seq 0 n)) as [-> _]; destruct (Hk (seq n (l - n))) as [_ ->]].
  { induction k as [|i k [IH1 IH2]]; [done|]. rewrite !filter_cons. rewrite decide_True, decide_False by tauto. by rewrite IH1, IH2. }
  apply app_nil_r.
Qed.
Lemma pos_app q k t : t ∈ q → pos (q ++ k) t = pos q t.
Proof. induction 1 as [u q|u w q Ht IH]; simpl; [by rewrite !decide_True|]. rewrite IH. by case_decide. Qed.
Lemma pos_lt q t : t ∈ q → pos q t < length q.
Proof. induction 1 as [u q|u w q Ht IH]; simpl; [rewrite decide_True by done; lia|]. case_decide; lia. Qed.
Lemma pos_new q t : t ∉ q → pos (q ++ [t]) t = length q.
Proof.
  induction q as [|u q IH]; simpl; intros Hn; [by rewrite decide_True|]. apply not_elem_of_cons in Hn as [? ?].
  rewrite decide_False by done. by rewrite IH.
Qed.
Lemma pos_lookup q i t : NoDup q → q !! i = Some t → pos q t = i.
Proof.
  intros Hn. revert i. induction Hn as [|u q Hu Hn IH]; intros [|i]; simpl; [done|done|intros [= ->]; by rewrite decide_True|].
  intros Hi. rewrite decide_False; [by rewrite (IH i)|]. intros ->. by apply Hu, (elem_of_list_lookup_2 _ i).
Qed.

(** ** What the steps of [Streams] do to ownership *)
Definition live (s : bst) (t : nat) : Prop := ph s t = PRun ∨ ph s t = PClosed.
Definition past (s : bst) (t : nat) : Prop := ph s t = PClosed ∨ ph s t = PLaid.
Lemma commit_own s s' x (L : list nat) id :
  binv str rel s → bstep str rel s s' → hist s' = hist s ++ [x] → own s' (length (hist s)) = id →
  (∀ u, u ∈ L ↔ ph s u = PRun ∧ (u = id ∨ ph s' u = PNone)) →
  (∀ i, i < length (hist s) → own s' i = id ↔ own s i ∈ L) ∧
  (∀ i t, i < length (hist s) → t ≠ id → t ∉ L → own s' i = t ↔ own s i = t) ∧
  (∀ t, t ≠ id → live s' t → ph s t = ph s' t ∧ t ∉ L) ∧
  ph s' id = PRun ∧ recs s' = recs s ∧ (∀ t, past s t → t ≠ id ∧ t ∉ L) ∧ (∀ t, past s' t ↔ past s t).
Proof.
  intros Hv Hs Hh Hidd HL. destruct Hs as [y M id' E H ow p r lc d q R HM Hr Hrel Hid HE HEr HEl ow' p' r' d' q' Hown Hnew Hp| | ];
    simpl in *; [|by apply (f_equal length) in Hh; rewrite app_length in Hh; simpl in Hh; lia..].
  rewrite Hidd in Hnew. subst id'. destruct Hv; simpl in *.
  assert (HLM : ∀ u, u ∈ L ↔ M u).
  { intros u. rewrite HL. split.
    - intros [Hu [->|Hn]]; [destruct Hid as [?|[Hn _]]; [done|congruence]|].
      destruct (Hp u) as [[_ Hp']|[(_&?&_)|(_&_&Hp')]]; [congruence|done|congruence].
    - intros Hm. split; [by apply HM|]. destruct (Hp u) as [[? _]|[(_&_&?)|(_&?&_)]]; auto. done. }
  assert (Hno : ∀ i, i < length H → ow i = id → M id).
  { intros i Hi Eo. destruct Hid as [?|[Hn _]]; [done|]. destruct (v_own i Hi). by rewrite Eo. }
  assert (Hpast : ∀ t, p t = PClosed ∨ p t = PLaid → t ≠ id ∧ ¬ M t).
  { intros t Ht. split; [intros ->; destruct Hid as [Hm%HM|[Hn _]]|intros Hm%HM]; destruct Ht; congruence. }
  unfold live, past. simpl. split_and!.
  - intros i Hi. rewrite HLM. destruct (Hown i Hi) as [[? ->]|[Hn ->]]; [done|]. split; [|done].
    intros Eo. destruct Hn. rewrite Eo. by eapply Hno.
  - intros i t Hi Hti. rewrite HLM. intros Htm. destruct (Hown i Hi) as [[Hm ->]|[Hn ->]]; [|done].
    split; [congruence|]. intros <-. done.
  - intros t Hti Hlive. rewrite HLM. destruct (Hp t) as [[? _]|[(_&_&Hpn)|(_&Hn&Hpt)]]; [done| |done].
    destruct Hlive; congruence.
  - by destruct (Hp id) as [[_ ?]|[(?&_)|(?&_)]].
  - done.
  - intros t Ht. rewrite HLM. by apply Hpast.
  - intros t. destruct (Hp t) as [[-> ->]|[(_&Hm&->)|(_&_&->)]]; [|apply HM in Hm|done].
    + split; [by intros [?|?]|]. by intros [? _]%Hpast.
    + rewrite Hm. by split; intros [?|?].
Qed.

Record iinv (s : bst) (m : mem) : Prop := {
  i_b : binv str rel s;
  i_cur : ∀ o, cur m o = run_all (fo (hist s) o) (seq 0 (length (hist s))) (d0 o);
  i_msk : ∀ t o, live s t → msk m t o = anyb (hist s) (λ x, wr x o) (idx s t);
  i_adm : ∀ t o, live s t → adm m t o = anyb (hist s) (λ x, ad x o) (idx s t);
  i_sum : ∀ t o, live s t → sum m t o = tot (hist s) o (idx s t);
  i_run : ∀ t o, ph s t = PRun → lat m t o = lts s t o;
  i_lat : ∀ t o, ph s t = PClosed → lat m t o = true → lts s t o = true;
  (* the newest value is given up only to a laid transaction that closed later *)
  i_left : ∀ t o, ph s t = PClosed → lts s t o = true → lat m t o = false →
    ∃ w, w ∈ laid s ∧ lts s w o = true ∧ pos (que m) t < pos (que m) w;
  i_kept : ∀ t o w, ph s t = PClosed → lat m t o = true → w ∈ laid s → lts s w o = true → pos (que m) w ≤ pos (que m) t;
  i_frz : ∀ t o, ph s t = PClosed → frz m t o = run_all (fo (hist s) o) (seq 0 (mom m t)) (d0 o);
  i_nodup : NoDup (que m);
  i_que : ∀ t, t ∈ que m ↔ past s t;
  i_mom : ∀ t u, t ∈ que m → u ∈ que m → pos (que m) u ≤ pos (que m) t → mom m u ≤ mom m t;
  i_old : ∀ t, t ∈ que m → mom m t ≤ length (hist s) ∧ ∀ i, i < length (hist s) → own s i = t → i < mom m t;
  (* what relates to an operation joins it or comes after its transaction has closed *)
  i_new : ∀ i j x y, i < j → hist s !! i = Some x → hist s !! j = Some y → rel x y → own s i ∈ que m →
    own s j ≠ own s i → mom m (own s i) ≤ j;
  i_good : ∀ k o, good s (mom m) (laid_in s k) o (after (take k (log m)) o);
  i_log : ∀ o, com m o = after (log m) o;
  i_len : length (log m) = length (recs s);
  i_recs : ∀ k p ts, log m !! k = Some p → recs s !! k = Some ts →
    ∀ o v, p o = Some v → (∃ i x, hist s !! i = Some x ∧ tch x o = true ∧ own s i ∈ ts) ∨ v = after (take k (log m)) o }.

Lemma binv_step s s' : binv str rel s → bstep str rel s s' → binv str rel s'.
Proof. intros Hv Hs. destruct Hs; [by eapply ok_commit|by eapply ok_close|by eapply ok_lay]. Qed.
Lemma init_iinv c : iinit c → iinv c.1 c.2.
Proof.
  destruct c as [s m]. simpl. intros (Hi&Hcu&Hco&Hlg&Hq). simpl in *. pose proof (binit_inv str rel s Hi) as Hv. red in Hi. subst s.
  assert (∀ t, ¬ live (B [] (λ _, 0) (λ _, PNone) (λ _, None) (λ _, None) (λ _ _, False) (λ _ _, False) []) t) as Hl
    by (intros t [?|?]; done).
  constructor; rewrite ?Hq; simpl; try done; try (intros; by exfalso; eapply Hl).
  - constructor.
  - intros t. unfold past. simpl. rewrite elem_of_nil. split; [done|]. by intros [?|?].
  - intros t u Ht. by apply elem_of_nil in Ht.
  - intros t Ht. by apply elem_of_nil in Ht.
  - intros k o. rewrite Hlg, take_nil. split; [done|]. intros i x Hx. by apply lookup_lt_Some, Nat.nlt_0_r in Hx.
  - intros o. by rewrite Hlg.
  - by rewrite Hlg.
Qed.

Lemma laid_in_sub s k t : t ∈ laid_in s k → t ∈ laid s.
Proof.
  unfold laid_in, laid. intros Ht. rewrite <-(take_drop k (recs s)), concat_app. apply elem_of_app. by left.
Qed.
Lemma concat_idx s l i : i ∈ concat (idx s <$> l) ↔ own s i ∈ l ∧ i < length (hist s).
Proof.
  induction l as [|t l IH]; csimpl; [rewrite !elem_of_nil; tauto|]. rewrite elem_of_app, IH, idx_elem, elem_of_cons. tauto.
Qed.
Lemma anyb_concat H p (g : nat → list nat) L : anyb H p (concat (g <$> L)) = existsb (λ u, anyb H p (g u)) L.
Proof. induction L as [|u L IH]; csimpl; [done|]. by rewrite anyb_app, IH. Qed.
(** ** Commit *)
Lemma idx_other s s' x t : hist s' = hist s ++ [x] → t ≠ own s' (length (hist s)) →
  (∀ i, i < length (hist s) → own s' i = t ↔ own s i = t) → idx s' t = idx s t.
Proof.
  intros Hh Ht Ho. unfold idx. rewrite Hh, app_length. simpl. rewrite Nat.add_1_r, seq_S, filter_app. simpl.
  rewrite filter_cons, decide_False by done. rewrite filter_nil, app_nil_r.
  apply filter_ext_in. intros i Hi%seq_lt. by apply Ho.
Qed.
Lemma idx_new s s' x (L : list nat) id : hist s' = hist s ++ [x] → own s' (length (hist s)) = id → NoDup L →
  (∀ i, i < length (hist s) → own s' i = id ↔ own s i ∈ L) →
  idx s' id ≡ₚ concat (idx s <$> L) ++ [length (hist s)].
Proof.
  intros Hh Hid Hn Ho. unfold idx at 1. rewrite Hh, app_length. simpl. rewrite Nat.add_1_r, seq_S, filter_app. simpl.
  rewrite filter_cons, decide_True by done. rewrite filter_nil. f_equiv.
  rewrite (filter_ext_in _ (λ i, own s i ∈ L)) by (intros i Hi%seq_lt; by apply Ho). by apply filter_concat.
Qed.
Lemma commit_any s s' x (L : list nat) id (p : op → bool) (f : nat → bool) :
  hist s' = hist s ++ [x] → own s' (length (hist s)) = id → idx s' id ≡ₚ concat (idx s <$> L) ++ [length (hist s)] →
  (∀ u, u ∈ L → f u = anyb (hist s) p (idx s u)) →
  p x || existsb f L = anyb (hist s') p (idx s' id).
Proof.
  intros Hh Hid Hi Hf. rewrite (anyb_perm _ _ _ _ Hi), anyb_app, Hh, orb_comm. f_equal.
  - rewrite anyb_snoc, anyb_concat; [|intros i [_ ?]%concat_idx; done]. apply existsb_ext_in. intros u Hu. by apply Hf.
  - unfold anyb. simpl. rewrite list_lookup_middle by done. by rewrite orb_false_r.
Qed.
Lemma ok_icommit s s' m x (L : list nat) id :
  iinv s m → bstep str rel s s' → hist s' = hist s ++ [x] → own s' (length (hist s)) = id →
  NoDup L → (∀ u, u ∈ L ↔ ph s u = PRun ∧ (u = id ∨ ph s' u = PNone)) →
  iinv s' (Mem (λ o, pt x o (cur m o)) (com m)
      (upd (msk m) id (λ o, wr x o || existsb (λ u, msk m u o) L))
      (upd (adm m) id (λ o, ad x o || existsb (λ u, adm m u o) L))
      (upd (sum m) id (λ o, foldr (λ u a, plus a (sum m u o)) (dl x o) L))
      (upd (lat m) id (λ o, lt x o || existsb (λ u, lat m u o) L)) (frz m) (que m) (mom m) (log m)).
Proof.
  intros [] Hs Hh Hid HN HL. destruct (commit_own s s' x L id i_b0 Hs Hh Hid HL) as (Ho1&Ho2&Ho3&Ho4&Ho5&Ho6&Ho7).
  pose proof (binv_step _ _ i_b0 Hs) as Hv'.
  pose proof (idx_new s s' x L id Hh Hid HN Ho1) as Hnew.
  assert (Hidx : ∀ t, t ≠ id → t ∉ L → idx s' t = idx s t).
  { intros t Ht1 Ht2. apply (idx_other s s' x t); [done|by rewrite Hid|]. intros i Hi. by apply Ho2. }
  assert (HLr : ∀ u, u ∈ L → ph s u = PRun) by (by intros u [? _]%HL).
  assert (Hlive : ∀ u, u ∈ L → live s u) by (intros u ?; left; auto).
  assert (Hold : ∀ t, t ≠ id → live s' t → live s t ∧ idx s' t = idx s t).
  { intros t Ht Hl. destruct (Ho3 t Ht Hl) as [E ?]. split; [|by apply Hidx]. unfold live. by rewrite E. }
  assert (Hlt : ∀ t i, i ∈ idx s t → i < length (hist s)) by (intros t i [_ ?]%idx_elem; done).
  assert (Hlen : length (hist s') = S (length (hist s))) by (rewrite Hh, app_length; simpl; lia).
  assert (Hlaid : laid s' = laid s) by (unfold laid; by rewrite Ho5).
  assert (Hlp : ∀ t, t ∈ laid s → past s t) by (intros t Ht; right; by apply (v_laid str rel s i_b0)).
  assert (Hpast : ∀ t, past s t → idx s' t = idx s t) by (intros t [? ?]%Ho6; by apply Hidx).
  assert (Hany : ∀ t p, past s t → anyb (hist s') p (idx s' t) = anyb (hist s) p (idx s t)).
  { intros t p Ht. rewrite Hpast, Hh by done. apply anyb_snoc, Hlt. }
  assert (Hc : ∀ t, ph s' t = PClosed → t ≠ id ∧ ph s t = PClosed ∧ past s t).
  { intros t Ht. assert (t ≠ id) as Hn by congruence. destruct (Ho3 t Hn) as [E _]; [by right|].
    assert (ph s t = PClosed) by congruence. split_and!; [done..|by left]. }
  assert (Hmask : ∀ (p : op → bool) (f : nat → bool) t, (∀ u, u ∈ L → f u = anyb (hist s) p (idx s u)) →
    (t ≠ id → live s t → f t = anyb (hist s) p (idx s t)) →
    live s' t → (if decide (t = id) then p x || existsb f L else f t) = anyb (hist s') p (idx s' t)).
  { intros p f t Hf Hf' Hl. case_decide as E; [subst t; by apply (commit_any s s')|].
    destruct (Hold t E Hl) as [? ->]. rewrite Hh, anyb_snoc by apply Hlt. auto. }
  constructor; simpl; [done|..].
  - intros o. rewrite Hlen, seq_S, run_all_app, Hh, (run_snoc _ _ _ (seq 0 _)) by (intros i ?%seq_lt; done). rewrite <-i_cur0. simpl.
    unfold run_all, fo. simpl. by rewrite list_lookup_middle.
  - intros t o Hl. rewrite <-(Hmask (λ x, wr x o) (λ u, msk m u o) t) by auto. unfold upd. by case_decide.
  - intros t o Hl. rewrite <-(Hmask (λ x, ad x o) (λ u, adm m u o) t) by auto. unfold upd. by case_decide.
  - intros t o Hl. unfold upd. case_decide as E.
    + subst t. rewrite (tot_perm _ _ _ _ Hnew). clear -i_sum0 Hlive Hh Hlt Hcomm Hassoc Hzero.
      induction L as [|u L IH]; csimpl.
      * rewrite Hh, list_lookup_middle by done. rewrite (comm plus). by rewrite (right_id zero plus).
      * rewrite <-app_assoc, tot_app, <-IH by (intros; apply Hlive; by right). f_equal.
        rewrite Hh, tot_snoc by apply Hlt. apply i_sum0, Hlive. left.
    + destruct (Hold t E Hl) as [? ->]. rewrite Hh, tot_snoc by apply Hlt. auto.
  - intros t o Ht. unfold lts. rewrite <-(Hmask (λ x, lt x o) (λ u, lat m u o) t); [unfold upd; by case_decide| | |by left].
    + intros u Hu. by apply i_run0, HLr.
    + intros Hn _. apply i_run0. destruct (Ho3 t Hn); [by left|]. congruence.
  - intros t o (Hn&?&?)%Hc. unfold upd, lts. rewrite decide_False, Hany by done. by apply i_lat0.
  - intros t o (Hn&?&?)%Hc. unfold upd, lts. rewrite decide_False, Hany, Hlaid by done. intros Hl Hf.
    destruct (i_left0 t o) as (w&Hw&?&?); [done..|]. exists w. rewrite Hany by by apply Hlp. done.
  - intros t o w (Hn&?&?)%Hc. unfold upd, lts. rewrite decide_False, Hlaid by done. intros Hl Hw.
    rewrite Hany by by apply Hlp. by eapply i_kept0.
  - intros t o (_&?&?)%Hc. rewrite Hh, run_snoc; [auto|]. intros i Hi%seq_lt. destruct (i_old0 t); [by apply i_que0|]. lia.
  - done.
  - intros t. by rewrite Ho7.
  - done.
  - intros t Ht. destruct (i_old0 t Ht) as [? Hi]. apply i_que0, Ho6 in Ht as [Hn HnL]. split; [lia|]. intros i Hil Eo.
    destruct (decide (i = length (hist s))) as [->|]; [congruence|]. apply Hi; [lia|]. apply (Ho2 i t); [lia|done..].
  - intros i j y z Hij Hy Hz Hr Hq Hn. pose proof Hq as [Hn1 Hn2]%i_que0%Ho6. destruct (i_old0 _ Hq) as [? _].
    rewrite Hh in Hy, Hz. apply lookup_app_Some in Hz as [Hz|[? _]]; [|lia].
    assert (j < length (hist s)) as Hj by by eapply lookup_lt_Some. rewrite lookup_app_l in Hy by lia.
    assert (own s i = own s' i) as Ei by (apply (Ho2 i (own s' i)); [lia|done..]). rewrite <-Ei in *.
    apply (i_new0 i j y z); [done..|]. intros Ej. apply Hn. by apply (Ho2 j (own s i)).
  - intros k o. assert (laid_in s' k = laid_in s k) as -> by (unfold laid_in; by rewrite Ho5).
    destruct (i_good0 k o) as [Hg1 Hg2]. assert (∀ t, t ∈ laid_in s k → past s t) as Hlk by (by intros t ?%laid_in_sub%Hlp).
    assert (moment s' (mom m) (laid_in s k) o = moment s (mom m) (laid_in s k) o) as Em.
    { apply moment_ext. intros t Ht. split; [|done]. by apply Hany, Hlk. }
    assert (moment s (mom m) (laid_in s k) o ≤ length (hist s)) as Hml.
    { apply moment_max. intros t Ht%Hlk%i_que0 _. by apply i_old0. }
    assert (∀ i, i < length (hist s) → own s' i ∈ laid_in s k ↔ own s i ∈ laid_in s k) as Hown.
    { intros i Hi. split; intros Hin; pose proof (Hlk _ Hin) as [? ?]%Ho6.
      - destruct (Ho2 i (own s' i)) as [E _]; [done..|]. by rewrite E.
      - destruct (Ho2 i (own s i)) as [_ E]; [done..|]. by rewrite E. }
    split.
    + rewrite Em, Hg1, Hlen, seq_S, filter_app. simpl. rewrite filter_cons, decide_False, filter_nil, app_nil_r.
      * symmetry. rewrite (filter_ext_in _ (λ i, i < moment s (mom m) (laid_in s k) o ∨ own s i ∈ laid_in s k))
          by (intros i Hi%seq_lt; by rewrite Hown).
        rewrite Hh, run_snoc; [done|]. intros i [_ ?%seq_lt]%elem_of_list_filter. done.
      * rewrite Hid. intros [?|Hin]; [lia|]. by apply Hlk, Ho6 in Hin as [? _].
    + intros i y Hy Hw. rewrite Em. intros Hi. apply Hown; [lia|]. eapply Hg2; [|done..].
      rewrite Hh, lookup_app_l in Hy by lia. done.
  - done.
  - by rewrite Ho5.
  - intros k p ts Hp Hts o v Hv. rewrite Ho5 in Hts. destruct (i_recs0 k p ts Hp Hts o v Hv) as [(i&y&Hy&Hty&Hi)|?]; [left|by right].
    exists i, y. rewrite Hh. split; [by apply lookup_app_l_Some|]. split; [done|].
    assert (own s i ∈ laid s) as Hil.
    { unfold laid. apply elem_of_list_In, in_concat. exists ts. rewrite <-!elem_of_list_In.
      split; [by eapply elem_of_list_lookup_2|done]. }
    apply Hlp, Ho6 in Hil as [??]. destruct (Ho2 i (own s i)) as [_ E]; [by eapply lookup_lt_Some|done..|]. by rewrite E.
Qed.

(** ** Close *)
Lemma close_facts s s' t :
  bstep str rel s s' → hist s' = hist s → ph s t = PRun → ph s' t = PClosed →
  own s' = own s ∧ recs s' = recs s ∧ ∀ u, u ≠ t → ph s' u = ph s u.
Proof.
  intros Hs Hh Hr Hc. destruct Hs as [y|u H ow p r lc d q R p' r' lc' Hu Hp|ts H ow p r lc d q R p' _ _ _ Hp]; simpl in *.
  - apply (f_equal length) in Hh. rewrite app_length in Hh. simpl in Hh. lia.
  - split_and!; [done..|]. intros w Hw. destruct (Hp t) as [[-> _]|[_ ?]]; [|congruence].
    by destruct (Hp w) as [[? _]|[_ ?]].
  - destruct (Hp t) as [[_ ?]|[_ ?]]; congruence.
Qed.
Lemma ok_iclose s s' m t :
  iinv s m → bstep str rel s s' → hist s' = hist s → ph s t = PRun → ph s' t = PClosed →
  iinv s' (Mem (cur m) (com m) (msk m) (adm m) (sum m) (lat m) (upd (frz m) t (cur m))
    (que m ++ [t]) (upd (mom m) t (length (hist s))) (log m)).
Proof.
  intros [] Hs Hh Hr Hc. pose proof (binv_step _ _ i_b0 Hs) as Hv'.
  destruct (close_facts _ _ _ Hs Hh Hr Hc) as (Eo&Er&Ep).
  assert (Hidx : ∀ u, idx s' u = idx s u) by (intros u; unfold idx; by rewrite Eo, Hh).
  assert (Hlts : ∀ u o, lts s' u o = lts s u o) by (intros; unfold lts; by rewrite Hidx, Hh).
  assert (Hlaid : laid s' = laid s) by (unfold laid; by rewrite Er).
  assert (Hlive : ∀ u, live s' u → live s u).
  { intros u. unfold live. destruct (decide (u = t)) as [->|Hu]; [by left|]. by rewrite Ep. }
  assert (Htq : t ∉ que m) by (rewrite i_que0; intros [?|?]; congruence).
  assert (Hlq : ∀ u, u ∈ laid s → u ∈ que m) by (intros u Hu; apply i_que0; right; by apply (v_laid str rel s i_b0)).
  assert (Hne : ∀ u, u ∈ que m → u ≠ t) by congruence.
  assert (Hpos : ∀ u, u ∈ que m → pos (que m ++ [t]) u = pos (que m) u ∧ pos (que m) u < length (que m)).
  { intros u Hu. split; [by apply pos_app|by apply pos_lt]. }
  pose proof (pos_new _ _ Htq) as Hpt.
  assert (Hcq : ∀ u, ph s' u = PClosed → u ≠ t → ph s u = PClosed ∧ u ∈ que m).
  { intros u Hu Hn. assert (ph s u = PClosed) by (by rewrite <-Ep). split; [done|]. apply i_que0. by left. }
  constructor; simpl; try done; try (intros; rewrite Hh, ?Hidx; by auto).
  - intros u o Hu. rewrite Hlts. apply i_run0. rewrite <-Ep; [done|]. congruence.
  - intros u o Hu. rewrite Hlts. destruct (decide (u = t)) as [->|Hn]; [by rewrite i_run0|]. by apply i_lat0, Hcq.
  - intros u o Hu. rewrite Hlts, Hlaid. destruct (decide (u = t)) as [->|Hn]; [rewrite i_run0 by done; congruence|].
    destruct (Hcq u Hu Hn) as [Hu' Huq]. intros Hl Hf. destruct (i_left0 u o) as (w&Hw&?&?); [done..|]. exists w.
    rewrite Hlts. destruct (Hpos u Huq) as [-> _]. by destruct (Hpos w) as [-> _]; [apply Hlq|].
  - intros u o w Hu. rewrite Hlts, Hlaid. intros Hl Hw Hlw. destruct (Hpos w) as [-> ?]; [by apply Hlq|].
    destruct (decide (u = t)) as [->|Hn]; [lia|]. destruct (Hcq u Hu Hn) as [Hu' Huq].
    destruct (Hpos u Huq) as [-> _]. by eapply i_kept0.
  - intros u o Hu. rewrite Hh. unfold upd. case_decide as E; [apply i_cur0|]. by apply i_frz0, Hcq.
  - apply NoDup_app. split_and!; [done| |apply NoDup_singleton]. intros u Hu ->%elem_of_list_singleton. done.
  - intros u. rewrite elem_of_app, elem_of_list_singleton, i_que0. unfold past.
    destruct (decide (u = t)) as [->|Hn]; [split; [by left|by right]|]. rewrite Ep by done. tauto.
  - intros u w. rewrite !elem_of_app, !elem_of_list_singleton. unfold upd. intros [Hu| ->] [Hw| ->] Hp.
    + rewrite !decide_False by auto. apply i_mom0; [done..|]. destruct (Hpos u), (Hpos w); auto. lia.
    + destruct (Hpos u Hu). lia.
    + rewrite decide_False, decide_True by auto. by apply i_old0.
    + done.
  - intros u. rewrite elem_of_app, elem_of_list_singleton, Hh, Eo. unfold upd. intros [Hu| ->].
    + rewrite decide_False by auto. by apply i_old0.
    + by rewrite decide_True.
  - intros i j x y Hij Hx Hy Hrl. rewrite Hh in Hx, Hy. rewrite Eo, elem_of_app, elem_of_list_singleton. unfold upd.
    intros [Hq|Hq] Hn; [rewrite decide_False by auto; by eapply i_new0|]. destruct i_b0.
    destruct (v_dep i j x y Hij Hx Hy) as [?|[Hpr|[Hla _]]]; [by right|congruence| |].
    + destruct (v_pre _ _ Hpr) as (_&Hdir&_).
      assert (ph s (own s i) ≠ PRun) as []; [|congruence]. destruct (v_pre _ _ Hpr) as ([?|?]&_); congruence.
    + apply v_laid in Hla. congruence.
  - intros k o. assert (laid_in s' k = laid_in s k) as -> by (unfold laid_in; by rewrite Er).
    apply (good_same s s'); [done..|]. destruct (i_good0 k o) as [Hg1 Hg2].
    assert (moment s (upd (mom m) t (length (hist s))) (laid_in s k) o = moment s (mom m) (laid_in s k) o) as Em.
    { apply moment_ext. intros u Hu%laid_in_sub%Hlq. split; [done|]. unfold upd. rewrite decide_False; auto. }
    unfold good. by rewrite Em.
  - by rewrite Er.
  - intros k p ts. rewrite Er, Hh, Eo. apply i_recs0.
Qed.

(** ** Lay *)
Lemma laid_down s p q : binv str rel s → laid s = p ++ q → down s p.
Proof.
  intros [] Hl i j x y Hij Hx Hy Hr Hj. assert (lb (laid s) (own s i) (own s j) → own s i ∈ p) as Hlb.
  { intros Hlb. destruct Hlb as (a&b&Ha&Hb&?); [rewrite Hl; apply elem_of_app; by left|].
    apply elem_of_list_lookup in Hj as [b' Hb'].
    assert (laid s !! b' = Some (own s j)) as Hb2 by (rewrite Hl; by apply lookup_app_l_Some).
    assert (b' = b) as -> by by eapply NoDup_lookup.
    apply lookup_lt_Some in Hb'. rewrite Hl, lookup_app_l in Ha by lia. by eapply elem_of_list_lookup_2. }
  destruct (v_dep i j x y Hij Hx Hy) as [->|[Hq|[_ ?]]]; [by right|done| |auto].
  apply Hlb. by destruct (v_pre _ _ Hq) as (_&_&?).
Qed.
Lemma tot_none H o l : anyb H (λ x, ad x o) l = false → tot H o l = zero.
Proof.
  induction l as [|i l IH]; simpl; [done|]. intros [Hi Hl]%orb_false_iff. rewrite IH by done.
  destruct (H !! i); [|by rewrite (right_id zero plus)]. rewrite dl_none by done. by rewrite (right_id zero plus).
Qed.
(** Sums come last. *)
Lemma good_add s f l t o v : good s f l o v → t ∉ l → down s l → anyb (hist s) (λ x, wr x o) (idx s t) = false → lts s t o = false →
  plus v (tot (hist s) o (idx s t)) =
  run_all (fo (hist s) o) (filter (λ i, i < moment s f l o ∨ own s i ∈ l ++ [t]) (seq 0 (length (hist s)))) (d0 o).
Proof.
  intros [-> Ha] Htl Hd Hnw Hnl. set (n := moment s f l o) in *. rewrite <-run_sum by done.
  assert (Hno : ∀ i x, hist s !! i = Some x → own s i = t → wr x o = false ∧ lt x o = false).
  { intros i x Hx Ho. assert (i ∈ idx s t) by (apply idx_elem; split; [done|by eapply lookup_lt_Some]).
    split; [by eapply (anyb_false _ _ _ i x Hnw)|by eapply (anyb_false _ _ _ i x Hnl)]. }
  assert (Hna : ∀ i x, hist s !! i = Some x → own s i = t → ad x o = true → ¬ i < n).
  { intros i x Hx Ho Hadd Hi. apply Htl. rewrite <-Ho. apply (Ha i x); [done|by rewrite Hadd, orb_true_r|done]. }
  rewrite (run_filter _ _ _ (λ i, own s i ≠ t ∧ (i < n ∨ own s i ∈ l ++ [t])) (seq 0 _)).
  - rewrite <-run_all_app. symmetry. apply reorder.
    + rewrite (filter_split (λ i, own s i = t) (filter _ _)) at 1. rewrite !list_filter_filter. f_equiv. unfold idx.
      erewrite (filter_ext_in _ _ (seq 0 _)); [done|]. intros i _. simpl. split; [tauto|]. intros <-. split; [done|].
      right. apply elem_of_app. right. left.
    + intros i j w Hij%sub2_seq Hji. apply sub2_app in Hji as [Hji%sub2_seq|[[Hj Hi]|Hji%sub2_seq]]; [lia| |lia].
      apply elem_of_list_filter in Hj as [[Hjt Hj] _]. apply idx_elem in Hi as [Hi _].
      apply fo_comm. intros x y Hx Hy. destruct (Hno i x Hx Hi) as [Hw Hl]. split; [|done].
      apply not_true_iff_false. intros Hcl. pose proof (Hov x y o Hcl) as Hrl.
      assert (own s j ∉ l) as Hjl by (intros Hjl; apply Htl; rewrite <-Hi; by apply (Hd i j x y)).
      assert (j < n) as Hjn.
      { destruct Hj as [?|Hj]; [done|]. by apply elem_of_app in Hj as [?|?%elem_of_list_singleton]. }
      unfold clash in Hcl. rewrite Hw, Hl in Hcl. simpl in Hcl. rewrite orb_false_r in Hcl. apply orb_true_iff in Hcl as [Hcl|Hcl];
        apply andb_true_iff in Hcl as [Hcl1 Hcl2].
      * apply Hjl, (Ha j y Hy); [by rewrite Hcl2|done].
      * apply (Hna i x Hx Hi); [done|lia].
  - intros i x _ Hx Ht. rewrite elem_of_app, elem_of_list_singleton. split; [|tauto].
    intros Hi. assert (own s i ≠ t); [|tauto]. intros Ho. destruct Hi as [Hi|Hi]; [|congruence].
    destruct (Hno i x Hx Ho) as [Hw Hl]. apply (Hna i x Hx Ho); [|done]. unfold tch in Ht. rewrite Hw, Hl in Ht.
    by destruct (ad x o).
Qed.
Lemma clash_sym x y o : clash x y o = clash y x o.
Proof. unfold clash, tch. by destruct (wr x o), (ad x o), (lt x o), (wr y o), (ad y o), (lt y o). Qed.
(** One transaction is laid after [l]. *)
Lemma good_lay s m l t o v :
  iinv s m → ph s t = PClosed → t ∉ l → (∀ u, u ∈ l → u ∈ que m) → down s l → down s (l ++ [t]) →
  (lat m t o = true → ∀ u, u ∈ l → lts s u o = true → pos (que m) u ≤ pos (que m) t) →
  (lts s t o = true → lat m t o = false → ∃ w, w ∈ l ∧ lts s w o = true ∧ pos (que m) t ≤ pos (que m) w) →
  good s (mom m) l o v →
  good s (mom m) (l ++ [t]) o (if msk m t o || lat m t o then frz m t o else plus v (sum m t o)).
Proof.
  intros [] Hc Htl Hlq Hd Hdt Hkept Hleft Hg. assert (t ∈ que m) as Htq by (apply i_que0; by left).
  assert (Hmt : moment s (mom m) [t] o = if sets s t o then mom m t else 0) by (unfold moment; simpl; apply Nat.max_0_r).
  destruct (i_old0 t Htq) as [Htlen Htold].
  assert (Hne : ∀ u, u ∈ l → u ≠ t) by congruence.
  destruct (msk m t o || lat m t o) eqn:Es.
  - (* an operation [y] of [t] that sets the place *)
    assert (∃ j y, own s j = t ∧ hist s !! j = Some y ∧ wr y o || lt y o = true ∧ (wr y o = true ∨ lat m t o = true)) as (j&y&Hj&Hy&Hset&Hhow).
    { destruct (msk m t o) eqn:Em.
      - rewrite i_msk0 in Em by by right. apply anyb_idx in Em as (j&y&?&?&E). exists j, y. rewrite E. auto.
      - simpl in Es. pose proof (i_lat0 t o Hc Es) as El. apply anyb_idx in El as (j&y&?&?&E). exists j, y. rewrite E, orb_true_r. auto. }
    assert (Hjt : j < mom m t) by (apply Htold; [by eapply lookup_lt_Some|done]).
    assert (HA : ∀ i x, hist s !! i = Some x → own s i ∈ l → tch x o = true → i < mom m t ∧ mom m (own s i) ≤ mom m t).
    { intros i x Hx Hi Htx. pose proof (Hlq _ Hi) as Hiq. destruct (i_old0 _ Hiq) as [_ Hio].
      specialize (Hio i (lookup_lt_Some _ _ _ Hx) eq_refl). specialize (Hne _ Hi).
      assert (clash x y o = true ∨ mom m (own s i) ≤ mom m t) as [Hcl|?]; [| |split; lia].
      - destruct (clash x y o) eqn:Ecl; [by left|right]. destruct Hhow as [Hw|Hl].
        { unfold clash in Ecl. rewrite Htx, Hw in Ecl. by rewrite orb_true_r in Ecl. }
        apply i_mom0; [done..|]. apply Hkept; [done..|]. apply anyb_idx. exists i, x. split_and!; [done..|].
        unfold clash, tch in *. by destruct (wr x o), (ad x o), (lt x o), (wr y o), (ad y o), (lt y o).
      - assert (i ≠ j) by (intros ->; congruence). destruct (decide (i < j)) as [Hij|Hij].
        + assert (mom m (own s i) ≤ j) by (apply (i_new0 i j x y); [done..|by apply (Hov x y o)|done|congruence]). lia.
        + exfalso. apply Htl. rewrite <-Hj. apply (Hd j i y x); [lia|done..| |done]. apply (Hov y x o). by rewrite clash_sym. }
    assert (sets s t o = true) as Est by (apply anyb_idx; exists j, y; done). rewrite Est in Hmt.
    assert (moment s (mom m) (l ++ [t]) o = mom m t) as Em.
    { rewrite moment_app, Hmt. apply Nat.max_r, moment_max. intros u Hu (i&x&<-&Hx&Hsx)%anyb_idx. eapply HA; [done..|].
      unfold tch. by destruct (wr x o), (ad x o), (lt x o). }
    split; rewrite Em.
    + rewrite i_frz0, <-(filter_before (mom m t) (length (hist s))) by done. apply run_filter.
      intros i x Hi%seq_lt Hx Htx. split; [by left|]. intros [?|Hin]; [done|].
      apply elem_of_app in Hin as [Hin| ?%elem_of_list_singleton]; [by eapply HA|by apply Htold].
    + intros i x Hx Hwa Hi. destruct (decide (own s i = t)) as [->|Hn]; [apply elem_of_app; right; left|].
      assert (clash x y o = true) as Hcl
        by (unfold clash, tch; by destruct (wr x o), (ad x o), (lt x o), (wr y o), (ad y o), (lt y o)).
      assert (i ≠ j) by (intros ->; congruence). destruct (decide (i < j)) as [Hij|Hij].
      * apply (Hdt i j x y); [done..|by apply (Hov x y o)|]. rewrite Hj. apply elem_of_app. right. left.
      * assert (mom m (own s j) ≤ i) as Hm; [|rewrite Hj in Hm; lia].
        apply (i_new0 j i y x); [lia|done..| |by rewrite Hj|congruence]. apply (Hov y x o). by rewrite clash_sym.
  - apply orb_false_iff in Es as [Em El]. rewrite i_msk0 in Em by by right. rewrite i_sum0 by by right.
    destruct (lts s t o) eqn:Elt.
    + (* left to [w] *)
      destruct (Hleft eq_refl El) as (w&Hw&Hlw&Hp). pose proof (Hlq _ Hw) as Hwq.
      pose proof (i_mom0 w t Hwq Htq Hp) as Htw. pose proof (moment_le s (mom m) l o w Hw (lts_sets _ _ _ Hlw)) as Hwl.
      rewrite (lts_sets _ _ _ Elt) in Hmt.
      assert (moment s (mom m) (l ++ [t]) o = moment s (mom m) l o) as En by (rewrite moment_app, Hmt; lia).
      rewrite tot_none, (right_id zero plus).
      * destruct Hg as [Hg1 Hg2]. split; rewrite En.
        -- rewrite Hg1. apply run_filter. intros i x Hi%seq_lt Hx _. rewrite elem_of_app, elem_of_list_singleton. split; [tauto|].
           intros [?|[?|Ho]]; [tauto..|]. left. specialize (Htold i Hi Ho). lia.
        -- intros i x Hx Hwa Hi. apply elem_of_app. left. by eapply Hg2.
      * apply not_true_iff_false. intros (i&x&Hi&Hx&Hadx)%anyb_idx. apply anyb_idx in Hlw as (j&y&Hj&Hy&Hly).
        assert (clash x y o = true) as Hcl by (unfold clash; rewrite Hadx, Hly; by rewrite orb_true_r).
        specialize (Hne _ Hw). assert (i ≠ j) by (intros ->; congruence). destruct (decide (i < j)) as [Hij|Hij].
        -- apply Htl. rewrite <-Hi. apply (Hd i j x y); [done..|by apply (Hov x y o)|by rewrite Hj].
        -- assert (mom m (own s j) ≤ i) as Hm.
           { apply (i_new0 j i y x); [lia|done..| |by rewrite Hj|congruence]. apply (Hov y x o). by rewrite clash_sym. }
           rewrite Hj in Hm. specialize (Htold i (lookup_lt_Some _ _ _ Hx) Hi). lia.
    + assert (sets s t o = false) as Est.
      { apply not_true_iff_false. intros (i&x&Hi&Hx&[Hs|Hs]%orb_true_iff)%anyb_idx.
        - apply not_true_iff_false in Em. apply Em, anyb_idx. eauto.
        - apply not_true_iff_false in Elt. apply Elt, anyb_idx. eauto. }
      rewrite Est in Hmt. assert (moment s (mom m) (l ++ [t]) o = moment s (mom m) l o) as En by (rewrite moment_app, Hmt; lia).
      split; rewrite En; [by apply good_add|]. intros i x Hx Hwa Hi. apply elem_of_app. left. destruct Hg as [_ Hg]. by eapply Hg.
Qed.
Lemma fold_lay1 m ts c o :
  foldl (lay1 m) c ts o = foldl (λ v t, if msk m t o || lat m t o then frz m t o else plus v (sum m t o)) (c o) ts.
Proof. revert c. induction ts as [|t ts IH]; intros c; simpl; [done|]. by rewrite IH. Qed.
Lemma lay_none m ts o : (∀ t, t ∈ ts → msk m t o || lat m t o = false ∧ sum m t o = zero) → lay m ts o = com m o.
Proof.
  unfold lay. rewrite fold_lay1. generalize (com m o) as v. induction ts as [|t ts IH]; intros v H; simpl; [done|].
  destruct (H t) as (->&->); [left|]. rewrite (right_id zero plus). apply IH. intros. apply H. by right.
Qed.
Lemma after_snoc l p o : after (l ++ [p]) o = match p o with Some w => w | None => after l o end.
Proof. unfold after. by rewrite foldl_app. Qed.
Lemma laid_in_all s k : length (recs s) ≤ k → laid_in s k = laid s.
Proof. intros. unfold laid_in. by rewrite take_ge. Qed.

Lemma lay_facts s s' ts :
  bstep str rel s s' → recs s' = recs s ++ [ts] →
  own s' = own s ∧ hist s' = hist s ∧ (∀ t, t ∈ ts → ph s t = PClosed ∧ ph s' t = PLaid) ∧ (∀ u, u ∉ ts → ph s' u = ph s u).
Proof.
  intros Hs Hr. destruct Hs as [y|u H ow p r lc d q R p' r' lc' Hu Hp|us H ow p r lc d q R p' _ Hus _ Hp]; simpl in *.
  1, 2: by apply (f_equal length) in Hr; rewrite app_length in Hr; simpl in Hr; lia.
  simplify_list_eq. split_and!; [done..| |].
  - intros t Ht. split; [auto|]. by destruct (Hp t) as [[_ ?]|[? _]].
  - intros u Hu. by destruct (Hp u) as [[? _]|[_ ?]].
Qed.
Lemma ok_ilay s s' m ts gap :
  iinv s m → bstep str rel s s' → recs s' = recs s ++ [ts] → ts `sublist_of` que m →
  iinv s' (Mem (cur m) (lay m ts) (msk m) (adm m) (sum m)
    (λ u o, lat m u o && negb (bool_decide (ph s' u = PClosed) && overtaken m ts u o))
    (frz m) (que m) (mom m) (log m ++ [patch m ts gap])).
Proof.
  intros Hinv Hs Hr Hsub. pose proof Hinv as []. pose proof (binv_step _ _ i_b0 Hs) as Hv'.
  destruct (lay_facts _ _ _ Hs Hr) as (Eo&Eh&Hc&Ep).
  assert (Hidx : ∀ u, idx s' u = idx s u) by (intros u; unfold idx; by rewrite Eo, Eh).
  assert (Hlts : ∀ u o, lts s' u o = lts s u o) by (intros; unfold lts; by rewrite Hidx, Eh).
  assert (Hlaid : laid s' = laid s ++ ts) by (unfold laid; rewrite Hr, concat_app; simpl; by rewrite app_nil_r).
  assert (Hpl : ∀ u, live s' u → ph s' u = ph s u).
  { intros u Hu. apply Ep. intros [_ Hl]%Hc. unfold live in Hu. rewrite Hl in Hu. by destruct Hu. }
  assert (Hlive : ∀ u, live s' u → live s u) by (intros u Hu; unfold live; by rewrite <-(Hpl u Hu)).
  assert (Hclo : ∀ u, ph s' u = PClosed → ph s u = PClosed) by (intros u Hu; rewrite <-Hpl; [done|by right]).
  assert (Htch : ∀ t o, t ∈ ts → msk m t o || adm m t o || lat m t o = true → anyb (hist s) (λ x, tch x o) (idx s t) = true).
  { intros t o Ht Ho. apply Hc in Ht as [Ht _]. rewrite i_msk0, i_adm0 in Ho by by right. apply anyb_idx. unfold tch.
    apply orb_true_iff in Ho as [[Ho|Ho]%orb_true_iff|Ho]; [..|apply i_lat0 in Ho; [|done]];
      apply anyb_idx in Ho as (i&x&?&?&Hx); exists i, x; rewrite Hx, ?orb_true_r; done. }
  assert (Hkeep : ∀ o, existsb (λ t, msk m t o || adm m t o || lat m t o) ts = false → lay m ts o = com m o).
  { intros o Hn. apply lay_none. intros t Ht.
    assert (msk m t o || adm m t o || lat m t o = false) as [[-> Ha]%orb_false_iff ->]%orb_false_iff.
    { apply not_true_iff_false. intros Hx. apply not_true_iff_false in Hn. apply Hn, existsb_exists. exists t. by rewrite <-elem_of_list_In. }
    apply Hc in Ht as [Ht _]. split; [done|]. rewrite i_sum0 by by right. apply tot_none. rewrite <-i_adm0; [done|by right]. }
  assert (Hlq : ∀ u, u ∈ laid s → u ∈ que m) by (intros u Hu; apply i_que0; right; by apply (v_laid str rel s i_b0)).
  constructor; simpl; try done; try (intros; rewrite Eh, ?Hidx; by auto).
  - intros t o Ht. rewrite Hlts, bool_decide_false by congruence. rewrite andb_true_r. apply i_run0. rewrite <-Hpl; [done|by left].
  - intros t o Ht [Hl _]%andb_true_iff. rewrite Hlts. auto.
  - intros t o Ht. rewrite Hlts, Hlaid, bool_decide_true by done. intros Hl Hf. destruct (lat m t o) eqn:El; simpl in Hf.
    + apply negb_false_iff, existsb_exists in Hf as (w&Hw&[Hlw Hp%Nat.ltb_lt]%andb_true_iff). apply elem_of_list_In in Hw.
      exists w. rewrite Hlts, elem_of_app. split_and!; [by right| |done]. apply i_lat0; [by apply Hc|done].
    + destruct (i_left0 t o) as (w&?&?&?); [auto..|]. exists w. rewrite Hlts, elem_of_app. auto.
  - intros t o w Ht. rewrite Hlts, Hlaid, bool_decide_true by done. intros [Hl Hno%negb_true_iff]%andb_true_iff Hw Hlw. apply Hclo in Ht.
    apply elem_of_app in Hw as [Hw|Hw]; [by eapply i_kept0|]. destruct (lat m w o) eqn:Elw.
    + apply Nat.le_ngt. intros Hp. apply not_true_iff_false in Hno. apply Hno, existsb_exists. exists w.
      rewrite <-elem_of_list_In, Elw. split; [done|]. by apply Nat.ltb_lt.
    + destruct (i_left0 w o) as (w'&Hw'&Hlw'&?); [by apply Hc|done..|].
      assert (pos (que m) w' ≤ pos (que m) t) by by eapply i_kept0. lia.
  - intros t. rewrite i_que0. unfold past. destruct (decide (t ∈ ts)) as [Ht|Ht]; [|by rewrite Ep].
    destruct (Hc t Ht) as [-> ->]. split; auto.
  - intros t. rewrite Eh, Eo. apply i_old0.
  - intros i j x y. rewrite Eh, Eo. apply i_new0.
  - intros k o. apply (good_same s s'); [done..|]. destruct (decide (k ≤ length (recs s))) as [Hk|Hk].
    + rewrite take_app_le by lia. unfold laid_in. rewrite Hr, take_app_le by done. apply i_good0.
    + assert (match patch m ts gap o with Some w => w | None => after (log m) o end = lay m ts o) as E.
      { unfold patch. destruct (existsb _ ts) eqn:E; [done|]. destruct (gap o); [done|]. simpl. by rewrite <-i_log0, <-Hkeep. }
      rewrite laid_in_all, Hlaid, take_ge, after_snoc, E by (rewrite ?Hr, app_length; simpl; lia). clear E.
      assert (∀ a b, ts = a ++ b → good s (mom m) (laid s ++ a) o (foldl (lay1 m) (com m) a o)) as Hall;
        [|apply (Hall ts []); by rewrite app_nil_r].
      induction a as [|t a IH] using rev_ind; intros b Ets.
      { rewrite app_nil_r. simpl. rewrite i_log0, <-(firstn_all (log m)), i_len0, <-(laid_in_all s (length (recs s))) by done. apply i_good0. }
      rewrite <-app_assoc in Ets. specialize (IH _ Ets). rewrite foldl_app, app_assoc.
      assert (Ht : t ∈ ts) by (rewrite Ets; apply elem_of_app; right; left). destruct (Hc t Ht) as [Htc _].
      assert (Ha : ∀ u, u ∈ a → [u; t] `sublist_of` que m ∧ ph s u = PClosed).
      { intros u Hu. split; [|apply Hc; rewrite Ets; apply elem_of_app; by left]. etrans; [|exact Hsub]. rewrite Ets.
        apply (sublist_app [u] a [t] _); [by apply sub1|]. apply sublist_skip, sublist_nil_l. }
      pose proof (v_nodup str rel s' Hv') as Hnd. rewrite Hlaid, Ets, app_assoc in Hnd.
      apply (good_lay s m (laid s ++ a) t o (foldl (lay1 m) (com m) a o)); [done..| | | | | | |done].
      * intros Hin. apply NoDup_app in Hnd as (_&Hnd&_). apply (Hnd t Hin). left.
      * intros u [Hu|Hu]%elem_of_app; [by apply Hlq|]. apply i_que0. left. by apply Ha.
      * intros i j x y. rewrite <-Eh, <-Eo. apply (laid_down s' _ (t :: b)); [done|]. by rewrite Hlaid, Ets, app_assoc.
      * intros i j x y. rewrite <-Eh, <-Eo. apply (laid_down s' _ b); [done|]. by rewrite Hlaid, Ets, <-!app_assoc.
      * intros Hl u [Hu|Hu]%elem_of_app Hlu; [by eapply i_kept0|]. destruct (Ha u Hu) as [(i&j&Hi&Hj&?)%sub2_lookup _].
        rewrite (pos_lookup _ i u), (pos_lookup _ j t) by done. lia.
      * intros Hl Hf. destruct (i_left0 t o) as (w&Hw&?&?); [done..|]. exists w. split; [apply elem_of_app; by left|].
        split; [done|lia].
  - intros o. rewrite after_snoc. unfold patch. destruct (existsb _ ts) eqn:E; [done|]. destruct (gap o); [done|]. simpl.
    rewrite <-i_log0. by apply Hkeep.
  - rewrite Hr, !app_length. simpl. lia.
  - intros k p us Hp Hus o v Hv. rewrite Eh, Eo. rewrite Hr in Hus. apply lookup_app_Some in Hp as [Hp|[Hlen Hp]].
    + rewrite lookup_app_l in Hus by (rewrite <-i_len0; by eapply lookup_lt_Some).
      rewrite take_app_le by (apply lookup_lt_Some in Hp; lia). by eapply i_recs0.
    + rewrite lookup_app_r in Hus by lia. rewrite <-i_len0 in Hus.
      apply list_lookup_singleton_Some in Hp as [Hk <-], Hus as [_ <-]. unfold patch in Hv.
      destruct (existsb (λ t, msk m t o || adm m t o || lat m t o) ts) eqn:E; simpl in Hv; [left|right].
      * apply existsb_exists in E as (t&Ht&Hx). apply elem_of_list_In in Ht.
        apply Htch, anyb_idx in Hx as (i&x&Hi&Hx&Htx); [|done]. exists i, x. split_and!; [done..|]. by rewrite Hi.
      * destruct (gap o); [|done]. injection Hv as <-. replace k with (length (log m)) by lia.
        rewrite take_app, <-i_log0. by apply Hkeep.
Qed.

Lemma reach_iinv c c' : iinit c → isteps c c' → iinv c'.1 c'.2.
Proof.
  intros Hi Hs. assert (iinv c.1 c.2) as Hv by by apply init_iinv. clear Hi.
  induction Hs as [|c1 c2 c3 H1 H2 IH]; [done|]. apply IH. destruct H1; simpl in *.
  - by eapply ok_icommit.
  - by eapply ok_iclose.
  - by eapply ok_ilay.
Qed.
End images.
