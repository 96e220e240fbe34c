(** Images: the bytes of a record are those of its frozen transactions.

    Running transactions of all streams share the current image. A transaction owns a mask of
    it, and the sums that it adds to counters; when it closes it keeps the current image of
    that moment, which later operations do not change. A record carries the masks over into
    the committed image, resolves sums against it in log order, and takes the newest value of
    places for which that is the rule (a directory's times).

    Memory is one array of places, of all blocks. A place is a bit or byte, or a counter as a
    whole: nobody writes a part of a counter. *)
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

#[local] Instance phase_eq : EqDecision phase.
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
  log : list (place → option val) }.  (** the records' patches *)

(** Carries a transaction's part over into an image; [new] is the newest image. *)
Definition lay1 (m : mem) (new c : place → val) (t : nat) : place → val := λ o,
  if lat m t o then new o else if msk m t o then frz m t o else plus (c o) (sum m t o).
Definition lay (m : mem) (ts : list nat) : place → val := foldl (lay1 m (cur m)) (com m) ts.
(** The record's patch: the places that its transactions name, with their new contents; and
    any [gap] between them, because one range is shorter than two. *)
Definition patch (m : mem) (ts : list nat) (gap : place → bool) : place → option val := λ o,
  if existsb (λ t, msk m t o || adm m t o || lat m t o) ts || gap o then Some (lay m ts o) else None.

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
      (upd (lat m) id (λ o, lt x o || existsb (λ u, lat m u o) L)) (frz m) (log m))
| i_close s s' m t :
    bstep str rel s s' → hist s' = hist s → ph s t = PRun → ph s' t = PClosed →
    istep (s, m) (s', Mem (cur m) (com m) (msk m) (adm m) (sum m) (lat m) (upd (frz m) t (cur m)) (log m))
| i_lay s s' m ts gap :
    bstep str rel s s' → recs s' = recs s ++ [ts] →
    istep (s, m) (s', Mem (cur m) (lay m ts) (msk m) (adm m) (sum m) (lat m) (frz m) (log m ++ [patch m ts gap])).
Inductive isteps : bst * mem → bst * mem → Prop :=
| is_nil c : isteps c c
| is_cons c1 c2 c3 : istep c1 c2 → isteps c2 c3 → isteps c1 c3.
Context (d0 : place → val).
Definition iinit (c : bst * mem) : Prop :=
  binit c.1 ∧ (∀ o, cur c.2 o = d0 o) ∧ (∀ o, com c.2 o = d0 o) ∧ log c.2 = [].

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
(** The operations of a transaction; those of the first [k] records, in log order and as
    they were committed. *)
Definition idx (s : bst) (t : nat) : list nat := filter (λ i, own s i = t) (seq 0 (length (hist s))).
Definition laid_in (s : bst) (k : nat) : list nat := concat (take k (recs s)).
Definition log_order (s : bst) (k : nat) : list nat := concat (idx s <$> laid_in s k).
Definition commit_order (s : bst) (k : nat) : list nat := filter (λ i, own s i ∈ laid_in s k) (seq 0 (length (hist s))).
(** What patches lead to. *)
Definition after (l : list (place → option val)) (o : place) : val :=
  foldl (λ v p, match p o with Some w => w | None => v end) (d0 o) l.
(** Only writes and sums. *)
Definition plain (s : bst) (o : place) : Prop := ∀ i x, hist s !! i = Some x → lt x o = false.

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

(** ** What the steps of [Streams] do to ownership *)
Definition live (s : bst) (t : nat) : Prop := ph s t = PRun ∨ ph s t = PClosed.
Lemma commit_own s s' x (L : list nat) id :
  binv str rel s → bstep str rel s s' → hist s' = hist s ++ [x] → own s' (length (hist s)) = id →
  (∀ u, u ∈ L ↔ ph s u = PRun ∧ (u = id ∨ ph s' u = PNone)) →
  (∀ i, i < length (hist s) → own s' i = id ↔ own s i ∈ L) ∧
  (∀ i t, i < length (hist s) → t ≠ id → t ∉ L → own s' i = t ↔ own s i = t) ∧
  (∀ t, t ≠ id → live s' t → ph s t = ph s' t ∧ t ∉ L) ∧
  ph s' id = PRun ∧ recs s' = recs s ∧ (∀ t, t ∈ laid s → t ≠ id ∧ t ∉ L).
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
  split_and!.
  - intros i Hi. rewrite HLM. destruct (Hown i Hi) as [[? ->]|[Hn ->]]; [done|]. split; [|done].
    intros Eo. destruct Hn. rewrite Eo. by eapply Hno.
  - intros i t Hi Hti. rewrite HLM. intros Htm. destruct (Hown i Hi) as [[Hm ->]|[Hn ->]]; [|done].
    split; [congruence|]. intros <-. done.
  - intros t Hti Hlive. rewrite HLM. destruct (Hp t) as [[? _]|[(_&_&Hpn)|(_&Hn&Hpt)]]; [done| |done].
    unfold live in Hlive. simpl in Hlive. destruct Hlive; congruence.
  - by destruct (Hp id) as [[_ ?]|[(?&_)|(?&_)]].
  - done.
  - intros t Ht. rewrite HLM. apply v_laid in Ht. split; [|by intros Hm%HM; congruence]. intros ->.
    destruct Hid as [Hm%HM|[Hn _]]; congruence.
Qed.

Record iinv (s : bst) (m : mem) : Prop := {
  i_b : binv str rel s;
  i_cur : ∀ o, cur m o = run_all (fo (hist s) o) (seq 0 (length (hist s))) (d0 o);
  i_msk : ∀ t o, live s t → msk m t o = anyb (hist s) (λ x, wr x o) (idx s t);
  i_adm : ∀ t o, live s t → adm m t o = anyb (hist s) (λ x, ad x o) (idx s t);
  i_lat : ∀ t o, live s t → lat m t o = anyb (hist s) (λ x, lt x o) (idx s t);
  i_sum : ∀ t o, live s t → sum m t o = tot (hist s) o (idx s t);
  i_frz : ∀ t o v, ph s t = PClosed → msk m t o = true → lat m t o = false →
    frz m t o = run_all (fo (hist s) o) (idx s t) v;
  i_com : ∀ k o, plain s o → after (take k (log m)) o = run_all (fo (hist s) o) (log_order s k) (d0 o);
  i_late : ∀ o, (∀ i x, hist s !! i = Some x → ad x o = false) →
    com m o = cur m o ∨ ∃ i x, hist s !! i = Some x ∧ tch x o = true ∧ own s i ∉ laid s;
  i_log : ∀ o, com m o = after (log m) o;
  i_len : length (log m) = length (recs s);
  i_recs : ∀ k p ts, log m !! k = Some p → recs s !! k = Some ts →
    ∀ o v, p o = Some v → (∃ i x, hist s !! i = Some x ∧ tch x o = true ∧ own s i ∈ ts) ∨ v = after (take k (log m)) o }.

Lemma binv_step s s' : binv str rel s → bstep str rel s s' → binv str rel s'.
Proof. intros Hv Hs. destruct Hs; [by eapply ok_commit|by eapply ok_close|by eapply ok_lay]. Qed.
Lemma init_iinv c : iinit c → iinv c.1 c.2.
Proof.
  destruct c as [s m]. simpl. intros (Hi&Hcu&Hco&Hlg). simpl in *. pose proof (binit_inv str rel s Hi) as Hv. red in Hi. subst s.
  assert (∀ t, ¬ live (B [] (λ _, 0) (λ _, PNone) (λ _, None) (λ _, None) (λ _ _, False) (λ _ _, False) []) t) as Hl
    by (intros t [?|?]; done).
  constructor; simpl; try done; try (intros; by exfalso; eapply Hl).
  - intros k o _. rewrite Hlg. unfold log_order, laid_in. simpl. by rewrite !take_nil.
  - intros o _. left. by rewrite Hcu, Hco.
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
  (∀ u, u ∈ L → live s u) → (∀ t, live s t → f t = anyb (hist s) p (idx s t)) →
  p x || existsb f L = anyb (hist s') p (idx s' id).
Proof.
  intros Hh Hid Hi HL Hf. rewrite (anyb_perm _ _ _ _ Hi), anyb_app, Hh, orb_comm. f_equal.
  - rewrite anyb_snoc, anyb_concat; [|intros i [_ ?]%concat_idx; done]. apply existsb_ext_in. intros u Hu. by apply Hf, HL.
  - unfold anyb. simpl. rewrite list_lookup_middle by done. by rewrite orb_false_r.
Qed.
Lemma ok_icommit s s' m x (L : list nat) id :
  iinv s m → bstep str rel s s' → hist s' = hist s ++ [x] → own s' (length (hist s)) = id →
  NoDup L → (∀ u, u ∈ L ↔ ph s u = PRun ∧ (u = id ∨ ph s' u = PNone)) →
  iinv s' (Mem (λ o, pt x o (cur m o)) (com m)
      (upd (msk m) id (λ o, wr x o || existsb (λ u, msk m u o) L))
      (upd (adm m) id (λ o, ad x o || existsb (λ u, adm m u o) L))
      (upd (sum m) id (λ o, foldr (λ u a, plus a (sum m u o)) (dl x o) L))
      (upd (lat m) id (λ o, lt x o || existsb (λ u, lat m u o) L)) (frz m) (log m)).
Proof.
  intros [] Hs Hh Hid HN HL. destruct (commit_own s s' x L id i_b0 Hs Hh Hid HL) as (Ho1&Ho2&Ho3&Ho4&Ho5&Ho6).
  pose proof (binv_step _ _ i_b0 Hs) as Hv'.
  pose proof (idx_new s s' x L id Hh Hid HN Ho1) as Hnew.
  assert (Hidx : ∀ t, t ≠ id → t ∉ L → idx s' t = idx s t).
  { intros t Ht1 Ht2. apply (idx_other s s' x t); [done|by rewrite Hid|]. intros i Hi. by apply Ho2. }
  assert (Hlive : ∀ u, u ∈ L → live s u) by (intros u [? _]%HL; by left).
  assert (Hold : ∀ t, t ≠ id → live s' t → live s t ∧ idx s' t = idx s t).
  { intros t Ht Hl. destruct (Ho3 t Ht Hl) as [E ?]. split; [|by apply Hidx]. unfold live. by rewrite E. }
  assert (Hlt : ∀ t i, i ∈ idx s t → i < length (hist s)) by (intros t i [_ ?]%idx_elem; done).
  assert (Hlen : length (hist s') = S (length (hist s))) by (rewrite Hh, app_length; simpl; lia).
  assert (Hlaid : laid s' = laid s) by (unfold laid; by rewrite Ho5).
  assert (Hlin : ∀ k t, t ∈ laid_in s k → idx s' t = idx s t).
  { intros k t Ht%laid_in_sub. destruct (Ho6 t Ht). by apply Hidx. }
  assert (Hmask : ∀ (p : op → bool) (f : nat → bool) t, (∀ t, live s t → f t = anyb (hist s) p (idx s t)) →
    live s' t → (if decide (t = id) then p x || existsb f L else f t) = anyb (hist s') p (idx s' t)).
  { intros p f t Hf Hl. case_decide as E; [subst t; by apply (commit_any s s')|].
    destruct (Hold t E Hl) as [? ->]. rewrite Hh, anyb_snoc by apply Hlt. auto. }
  constructor; simpl; [done|..].
  - intros o. rewrite Hlen, seq_S, run_all_app, Hh, (run_snoc _ _ _ (seq 0 _)) by (intros i ?%seq_lt; done). rewrite <-i_cur0. simpl.
    unfold run_all, fo. simpl. by rewrite list_lookup_middle.
  - intros t o Hl. rewrite <-(Hmask (λ x, wr x o) (λ u, msk m u o) t) by auto. unfold upd. by case_decide.
  - intros t o Hl. rewrite <-(Hmask (λ x, ad x o) (λ u, adm m u o) t) by auto. unfold upd. by case_decide.
  - intros t o Hl. rewrite <-(Hmask (λ x, lt x o) (λ u, lat m u o) t) by auto. unfold upd. by case_decide.
  - intros t o Hl. unfold upd. case_decide as E.
    + subst t. rewrite (tot_perm _ _ _ _ Hnew). clear Hnew HN HL Ho1 Ho2 Ho3 Ho6 Hidx Hold Hmask.
      induction L as [|u L IH]; csimpl.
      * rewrite Hh, list_lookup_middle by done. rewrite (comm plus). by rewrite (right_id zero plus).
      * rewrite <-app_assoc, tot_app, <-IH by (intros; apply Hlive; by right). f_equal.
        rewrite Hh, tot_snoc by apply Hlt. apply i_sum0, Hlive. left.
    + destruct (Hold t E Hl) as [? ->]. rewrite Hh, tot_snoc by apply Hlt. auto.
  - intros t o v Hp. assert (t ≠ id) as Ht by congruence. destruct (Hold t Ht) as [_ ->]; [by right|].
    destruct (Ho3 t Ht) as [E _]; [by right|]. unfold upd. rewrite !decide_False by done. intros Hm Hl.
    rewrite Hh, run_snoc by apply Hlt. apply i_frz0; congruence.
  - intros k o Hpl. rewrite i_com0.
    + assert (log_order s' k = log_order s k) as ->.
      { unfold log_order. assert (laid_in s' k = laid_in s k) as -> by (unfold laid_in; by rewrite Ho5).
        f_equal. apply fmap_ext_in. intros t Ht. by eapply Hlin. }
      rewrite Hh, run_snoc; [done|]. intros i [_ ?]%concat_idx. done.
    + intros i y Hy. apply (Hpl i y). rewrite Hh. by apply lookup_app_l_Some.
  - intros o Hna. rewrite Hlaid. destruct (tch x o) eqn:Ex.
    + right. exists (length (hist s)), x. rewrite Hh, list_lookup_middle by done. split_and!; [done..|].
      intros Hi. rewrite Hid in Hi. by destruct (Ho6 _ Hi).
    + rewrite pt_none by done. destruct (i_late0 o) as [?|(i&y&Hy&Hty&Hn)]; [|by left|right].
      * intros i y Hy. apply (Hna i y). rewrite Hh. by apply lookup_app_l_Some.
      * exists i, y. rewrite Hh. split; [by apply lookup_app_l_Some|]. split; [done|]. intros Hi. apply Hn.
        destruct (Ho6 _ Hi) as [Hi1 Hi2]. destruct (Ho2 i (own s' i)) as [E _]; [by eapply lookup_lt_Some|done..|].
        by rewrite E.
  - done.
  - by rewrite Ho5.
  - intros k p ts Hp Hts o v Hv. rewrite Ho5 in Hts. destruct (i_recs0 k p ts Hp Hts o v Hv) as [(i&y&Hy&Hty&Hi)|?]; [left|by right].
    exists i, y. rewrite Hh. split; [by apply lookup_app_l_Some|]. split; [done|].
    assert (own s i ∈ laid s) as Hil.
    { unfold laid. apply elem_of_list_In, in_concat. exists ts. rewrite <-!elem_of_list_In.
      split; [by eapply elem_of_list_lookup_2|done]. }
    destruct (Ho6 _ Hil). destruct (Ho2 i (own s i)) as [_ E]; [by eapply lookup_lt_Some|done..|]. by rewrite E.
Qed.

(** ** Close *)
(** The operations of [t] might as well have come last. *)
Lemma to_end s t o v :
  (∀ i k x y, hist s !! i = Some x → hist s !! k = Some y → i < k → own s i = t → own s k ≠ t → clash x y o = false) →
  anyb (hist s) (λ x, lt x o) (idx s t) = false →
  ∃ w, run_all (fo (hist s) o) (seq 0 (length (hist s))) v = run_all (fo (hist s) o) (idx s t) w.
Proof.
  intros Hc Hl. exists (run_all (fo (hist s) o) (filter (λ i, own s i ≠ t) (seq 0 (length (hist s)))) v).
  rewrite <-run_all_app. apply reorder; [apply filter_split|]. intros i j w Hij%sub2_seq' Hji.
  apply sub2_app in Hji as [Hji%sub2_seq|[[Hj Hi]|Hji%sub2_seq]]; [lia| |lia].
  apply elem_of_list_filter in Hj as [Hj _]. apply fo_comm. intros x y Hx Hy. split.
  - apply idx_elem in Hi as [Hi _]. by eapply Hc.
  - by apply (anyb_false (hist s) (λ x, lt x o) (idx s t) i x).
Qed.
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
  iinv s' (Mem (cur m) (com m) (msk m) (adm m) (sum m) (lat m) (upd (frz m) t (cur m)) (log m)).
Proof.
  intros [] Hs Hh Hr Hc. pose proof (binv_step _ _ i_b0 Hs) as Hv'.
  destruct (close_facts _ _ _ Hs Hh Hr Hc) as (Eo&Er&Ep).
  assert (Hidx : ∀ u, idx s' u = idx s u) by (intros u; unfold idx; by rewrite Eo, Hh).
  assert (Hlive : ∀ u, live s' u → live s u).
  { intros u. unfold live. destruct (decide (u = t)) as [->|Hu]; [by left|]. by rewrite Ep. }
  constructor; simpl; try done; try (intros; rewrite Hh, ?Hidx; by auto).
  - intros u o v Hu Hm Hl. rewrite Hh, Hidx. unfold upd. case_decide as E.
    + subst u. rewrite i_lat0 in Hl by by left. rewrite i_msk0 in Hm by by left. rewrite i_cur0.
      destruct (to_end s t o (d0 o)) as [w ->]; [|done|apply run_const; by rewrite Hm].
      intros i k x y Hx Hy Hik Hi Hk. apply not_true_iff_false. intros Hcl. destruct i_b0.
      destruct (v_dep i k x y Hik Hx Hy) as [?|[Hq|[Hla _]]]; [right; by eapply Hov|congruence| |].
      * destruct (v_pre _ _ Hq) as (Hp&_). rewrite Hi in Hp. destruct Hp; congruence.
      * apply v_laid in Hla. congruence.
    + apply i_frz0; [by rewrite <-Ep|done..].
  - intros k o Hpl. rewrite i_com0; [|intros i x; rewrite <-Hh; apply Hpl]. unfold log_order, laid_in. rewrite Er, Hh.
    f_equal. f_equal. apply fmap_ext_in. intros; by rewrite Hidx.
  - intros o Hna. unfold laid. rewrite Hh, Eo, Er. apply i_late0. intros i x. rewrite <-Hh. apply Hna.
  - by rewrite Er.
  - intros k p ts. rewrite Er, Hh, Eo. apply i_recs0.
Qed.

(** ** Lay *)
Lemma fold_lay1 m new ts c o :
  foldl (lay1 m new) c ts o =
  foldl (λ v t, if lat m t o then new o else if msk m t o then frz m t o else plus v (sum m t o)) (c o) ts.
Proof. revert c. induction ts as [|t ts IH]; intros c; simpl; [done|]. by rewrite IH. Qed.
Lemma lay_none m ts o : (∀ t, t ∈ ts → lat m t o = false ∧ msk m t o = false ∧ sum m t o = zero) → lay m ts o = com m o.
Proof.
  unfold lay. rewrite fold_lay1. generalize (com m o) as v. induction ts as [|t ts IH]; intros v H; simpl; [done|].
  destruct (H t) as (->&->&->); [left|]. rewrite (right_id zero plus). apply IH. intros. apply H. by right.
Qed.
Lemma lay_plain s m ts o v :
  iinv s m → plain s o → (∀ t, t ∈ ts → ph s t = PClosed) →
  foldl (λ v t, if lat m t o then cur m o else if msk m t o then frz m t o else plus v (sum m t o)) v ts =
  run_all (fo (hist s) o) (concat (idx s <$> ts)) v.
Proof.
  intros [] Hpl. revert v. induction ts as [|t ts IH]; intros v Hts; csimpl; [done|].
  assert (ph s t = PClosed) as Ht by (apply Hts; left). rewrite run_all_app, <-IH by (intros; apply Hts; by right). f_equal.
  assert (lat m t o = false) as El.
  { rewrite i_lat0 by by right. apply not_true_iff_false. intros (i&x&_&Hx&Hl)%anyb_spec. by rewrite (Hpl i x) in Hl. }
  rewrite El. destruct (msk m t o) eqn:Em; [by apply i_frz0|].
  rewrite i_sum0 by by right. rewrite i_msk0 in Em by by right. rewrite i_lat0 in El by by right. by rewrite run_sum.
Qed.
Lemma tot_none H o l : anyb H (λ x, ad x o) l = false → tot H o l = zero.
Proof.
  induction l as [|i l IH]; simpl; [done|]. intros [Hi Hl]%orb_false_iff. rewrite IH by done.
  destruct (H !! i); [|by rewrite (right_id zero plus)]. rewrite dl_none by done. by rewrite (right_id zero plus).
Qed.
Lemma after_snoc l p o : after (l ++ [p]) o = match p o with Some w => w | None => after l o end.
Proof. unfold after. by rewrite foldl_app. Qed.

Lemma lay_facts s s' ts :
  bstep str rel s s' → recs s' = recs s ++ [ts] →
  own s' = own s ∧ hist s' = hist s ∧ (∀ t, t ∈ ts → ph s t = PClosed) ∧ (∀ u, live s' u → ph s u = ph s' u).
Proof.
  intros Hs Hr. destruct Hs as [y|u H ow p r lc d q R p' r' lc' Hu Hp|us H ow p r lc d q R p' _ Hus _ Hp]; simpl in *.
  1, 2: by apply (f_equal length) in Hr; rewrite app_length in Hr; simpl in Hr; lia.
  simplify_list_eq. split_and!; [done..|]. intros u Hu. destruct (Hp u) as [[_ Hu']|[_ ?]]; [|done].
  unfold live in Hu. simpl in Hu. destruct Hu; congruence.
Qed.
Lemma ok_ilay s s' m ts gap :
  iinv s m → bstep str rel s s' → recs s' = recs s ++ [ts] →
  iinv s' (Mem (cur m) (lay m ts) (msk m) (adm m) (sum m) (lat m) (frz m) (log m ++ [patch m ts gap])).
Proof.
  intros Hinv Hs Hr. pose proof Hinv as []. pose proof (binv_step _ _ i_b0 Hs) as Hv'.
  destruct (lay_facts _ _ _ Hs Hr) as (Eo&Eh&Hc&Ep).
  assert (Hidx : ∀ u, idx s' u = idx s u) by (intros u; unfold idx; by rewrite Eo, Eh).
  assert (Hlive : ∀ u, live s' u → live s u) by (intros u Hu; unfold live; rewrite (Ep u Hu); done).
  assert (Hlaid : laid s' = laid s ++ ts) by (unfold laid; rewrite Hr, concat_app; simpl; by rewrite app_nil_r).
  assert (Htch : ∀ t o, t ∈ ts → msk m t o || adm m t o || lat m t o = anyb (hist s) (λ x, tch x o) (idx s t)).
  { intros t o Ht. rewrite i_msk0, i_adm0, i_lat0 by (right; auto). apply eq_true_iff_eq.
    rewrite !orb_true_iff, !anyb_spec. unfold tch. split.
    - intros [[H|H]|H]; destruct H as (i&x&?&?&Hx); exists i, x; rewrite Hx, ?orb_true_r; done.
    - intros (i&x&?&?&[[H|H]%orb_true_iff|H]%orb_true_iff); eauto 10. }
  assert (Hkeep : ∀ o, (∀ t, t ∈ ts → msk m t o || adm m t o || lat m t o = false) → lay m ts o = com m o).
  { intros o Hn. apply lay_none. intros t Ht. specialize (Hn t Ht). apply orb_false_iff in Hn as [[Hm Ha]%orb_false_iff Hl].
    split_and!; [done..|]. rewrite i_sum0 by (right; auto). apply tot_none. rewrite <-i_adm0; [done|right; auto]. }
  constructor; simpl; try done; try (intros; rewrite Eh, ?Hidx; by auto).
  - intros t o v Hp. rewrite Eh, Hidx. apply i_frz0. by rewrite (Ep t) by by right.
  - intros k o Hpl. assert (plain s o) as Hpl' by (intros i x; rewrite <-Eh; apply Hpl).
    assert (Hlo : ∀ j, j ≤ length (recs s) → log_order s' j = log_order s j).
    { intros j Hj. unfold log_order, laid_in. rewrite Hr, take_app_le by done. apply f_equal, fmap_ext_in. intros; apply Hidx. }
    destruct (decide (k ≤ length (recs s))) as [Hk|Hk].
    + rewrite take_app_le by lia. rewrite i_com0, Hlo, Eh by done. done.
    + rewrite take_ge by (rewrite app_length; simpl; lia). rewrite after_snoc. unfold patch.
      assert (log_order s' k = log_order s (length (recs s)) ++ concat (idx s <$> ts)) as ->.
      { unfold log_order, laid_in. rewrite Hr, !take_ge by (rewrite ?app_length; simpl; lia).
        rewrite concat_app, fmap_app, concat_app. simpl. rewrite app_nil_r.
        f_equal; apply f_equal, fmap_ext_in; intros; apply Hidx. }
      rewrite Eh, run_all_app, <-i_com0 by done. rewrite <-i_len0, firstn_all, <-i_log0.
      rewrite <-(lay_plain s m ts o _ Hinv Hpl' Hc), <-fold_lay1. fold (lay m ts).
      destruct (existsb _ ts || gap o) eqn:E; [done|]. apply orb_false_iff in E as [E _]. symmetry. apply Hkeep. intros t Ht.
      apply not_true_iff_false. intros Hx. apply not_true_iff_false in E. apply E, existsb_exists.
      exists t. by rewrite <-elem_of_list_In.
  - intros o Hna. assert (∀ i x, hist s !! i = Some x → ad x o = false) as Hna' by (intros i x; rewrite <-Eh; apply Hna).
    rewrite Eh, Eo, Hlaid.
    destruct (anyb (hist s) (λ x, tch x o) (filter (λ i, own s i ∉ laid s ++ ts) (seq 0 (length (hist s))))) eqn:Eu.
    { right. apply anyb_spec in Eu as (i&x&[Hi _]%elem_of_list_filter&?&?). eauto. }
    assert (Hall : ∀ i x, hist s !! i = Some x → tch x o = true → own s i ∈ laid s ++ ts).
    { intros i x Hx Ht. destruct (decide (own s i ∈ laid s ++ ts)) as [?|Hn]; [done|].
      rewrite (anyb_false _ _ _ i x Eu) in Ht; [done| |done]. apply elem_of_list_filter. split; [done|].
      apply seq_lt. by eapply lookup_lt_Some. }
    clear Eu. left. destruct (last_or_none (λ t, msk m t o || adm m t o || lat m t o) ts) as [Hn|(a&t&b&Ets&Ht&Hb)].
    + rewrite (Hkeep o Hn). destruct (i_late0 o Hna') as [?|(i&x&Hx&Htx&Hi)]; [done|]. exfalso.
      specialize (Hall i x Hx Htx). apply elem_of_app in Hall as [?|Hin]; [done|]. specialize (Hn _ Hin).
      rewrite Htch in Hn by done. rewrite (anyb_false _ _ _ i x Hn) in Htx; [done| |done].
      apply idx_elem. split; [done|by eapply lookup_lt_Some].
    + assert (t ∈ ts) as Htin by (rewrite Ets; apply elem_of_app; right; left).
      assert (Hquiet : ∀ u, u ∈ b → lat m u o = false ∧ msk m u o = false ∧ sum m u o = zero).
      { intros u Hu. assert (u ∈ ts) as Hut by (rewrite Ets; apply elem_of_app; right; by right).
        specialize (Hb u Hu). apply orb_false_iff in Hb as [[? Ha]%orb_false_iff ?]. split_and!; [done..|].
        rewrite i_sum0 by (right; auto). apply tot_none. rewrite <-i_adm0; [done|right; auto]. }
      unfold lay. rewrite fold_lay1, Ets, foldl_app. simpl.
      match goal with |- foldl ?f ?v b = _ => assert (foldl f v b = v) as -> end.
      { match goal with |- foldl ?f ?v b = _ => generalize v end. clear -Hquiet Hzero.
        induction b as [|u b IH]; intros v; simpl; [done|]. destruct (Hquiet u) as (->&->&->); [left|].
        rewrite (right_id zero plus). apply IH. intros. apply Hquiet. by right. }
      destruct (lat m t o) eqn:El; [done|].
      assert (adm m t o = false) as Ea.
      { rewrite i_adm0 by (right; auto). apply not_true_iff_false. intros (i&x&_&Hx&Ha)%anyb_spec. by rewrite (Hna' i x) in Ha. }
      rewrite Ea, !orb_false_r in Ht. rewrite Ht. rewrite i_cur0.
      destruct (to_end s t o (d0 o)) as [w ->]; [|by rewrite <-i_lat0 by (right; auto)|by apply i_frz0; auto].
      intros i k x y Hx Hy Hik Hi Hk. apply not_true_iff_false. intros Hcl.
      assert (tch y o = true) as Hty.
      { unfold clash in Hcl. unfold tch in *. destruct (wr y o), (ad y o), (lt y o); simpl in *; try done.
        by rewrite !andb_false_r in Hcl. }
      assert (own s k ∈ laid s') as Hkl by (rewrite Hlaid; by eapply Hall).
      assert (lb (laid s') t (own s k)) as Hlb.
      { destruct Hv'. destruct (v_dep i k x y Hik) as [E|[Hq|[_ E]]]; rewrite ?Eh, ?Eo in *; try done.
        - right. by eapply Hov.
        - congruence.
        - destruct (v_pre _ _ Hq) as (_&_&E). by rewrite Hi in E.
        - by rewrite Hi in E. }
      destruct (Hlb Hkl) as (p1&p2&Hp1&Hp2&Hp). destruct Hv' as [_ _ Hnd _ _ _ _ _].
      assert (laid s' !! length (laid s ++ a) = Some t) as Hp3.
      { rewrite Hlaid, Ets, app_assoc. by apply list_lookup_middle. }
      assert (p1 = length (laid s ++ a)) as -> by by eapply NoDup_lookup.
      rewrite Hlaid, Ets, app_assoc, lookup_app_r in Hp2 by lia.
      destruct (p2 - length (laid s ++ a)) as [|p3] eqn:E3; [lia|]. simpl in Hp2.
      apply elem_of_list_lookup_2 in Hp2. assert (own s k ∈ ts) as Hkts by (rewrite Ets; apply elem_of_app; right; by right).
      specialize (Hb _ Hp2). rewrite Htch in Hb by done. rewrite (anyb_false _ _ _ k y Hb) in Hty; [done| |done].
      apply idx_elem. split; [done|by eapply lookup_lt_Some].
  - intros o. rewrite after_snoc. unfold patch. destruct (existsb _ ts || gap o) eqn:E; [done|].
    apply orb_false_iff in E as [E _]. rewrite <-i_log0. apply Hkeep.
    intros t Ht. apply not_true_iff_false. intros Hx. apply not_true_iff_false in E. apply E, existsb_exists.
    exists t. by rewrite <-elem_of_list_In.
  - rewrite Hr, !app_length. simpl. lia.
  - intros k p us Hp Hus o v Hv. rewrite Eh, Eo. rewrite Hr in Hus. apply lookup_app_Some in Hp as [Hp|[Hlen Hp]].
    + rewrite lookup_app_l in Hus by (rewrite <-i_len0; by eapply lookup_lt_Some).
      rewrite take_app_le by (apply lookup_lt_Some in Hp; lia). by eapply i_recs0.
    + rewrite lookup_app_r in Hus by lia. rewrite <-i_len0 in Hus.
      apply list_lookup_singleton_Some in Hp as [Hk <-], Hus as [_ <-]. unfold patch in Hv.
      destruct (existsb (λ t, msk m t o || adm m t o || lat m t o) ts) eqn:E; simpl in Hv; [left|right].
      * apply existsb_exists in E as (t&Ht&Hx). apply elem_of_list_In in Ht.
        rewrite Htch in Hx by done. apply anyb_spec in Hx as (i&x&[Hi _]%idx_elem&Hx&Htx). exists i, x.
        split_and!; [done..|]. by rewrite Hi.
      * destruct (gap o); [|done]. injection Hv as <-. replace k with (length (log m)) by lia.
        rewrite take_app, <-i_log0. apply Hkeep. intros t Ht. apply not_true_iff_false. intros Hx.
        apply not_true_iff_false in E. apply E, existsb_exists. exists t. by rewrite <-elem_of_list_In.
Qed.

Lemma reach_iinv c c' : iinit c → isteps c c' → iinv c'.1 c'.2.
Proof.
  intros Hi Hs. assert (iinv c.1 c.2) as Hv by by apply init_iinv. clear Hi.
  induction Hs as [|c1 c2 c3 H1 H2 IH]; [done|]. apply IH. destruct H1; simpl in *.
  - by eapply ok_icommit.
  - by eapply ok_iclose.
  - by eapply ok_ilay.
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
Lemma laid_in_all s k : length (recs s) ≤ k → laid_in s k = laid s.
Proof. intros. unfold laid_in. by rewrite take_ge. Qed.
Lemma laid_in_lookup s k a t : laid_in s k !! a = Some t → laid s !! a = Some t.
Proof.
  intros H. unfold laid. rewrite <-(take_drop k (recs s)), concat_app. by apply lookup_app_l_Some.
Qed.

(** The current image is that of all operations. *)
Theorem current_is_commits c c' o : iinit c → isteps c c' →
  cur c'.2 o = run_all (fo (hist c'.1) o) (seq 0 (length (hist c'.1))) (d0 o).
Proof. intros Hi Hs. by destruct (reach_iinv _ _ Hi Hs). Qed.
(** The log leads to the laid operations, one after the other: whatever streams share the
    current image, of each prefix of the records nothing is lost and nothing else gets in. *)
Theorem log_is_operations c c' k o : iinit c → isteps c c' → plain c'.1 o →
  after (take k (log c'.2)) o = run_all (fo (hist c'.1) o) (log_order c'.1 k) (d0 o).
Proof. intros Hi Hs Hp. destruct (reach_iinv _ _ Hi Hs). by apply i_com0. Qed.
(** In the order of their commits, too. *)
Theorem log_is_commits c c' k o : iinit c → isteps c c' → plain c'.1 o →
  after (take k (log c'.2)) o = run_all (fo (hist c'.1) o) (commit_order c'.1 k) (d0 o).
Proof.
  intros Hi Hs Hp. rewrite (log_is_operations c c') by done. destruct (reach_iinv _ _ Hi Hs) as [[] _ _ _ _ _ _ _ _ _ _ _].
  destruct c' as [s m]; simpl in *. symmetry. apply reorder.
  - apply filter_concat. unfold laid in v_nodup. rewrite <-(take_drop k (recs s)), concat_app in v_nodup.
    by apply NoDup_app in v_nodup as (?&_).
  - intros i j w Hij%sub2_seq Hji. apply (sub2_concat _ (own s)) in Hji as [[t Hji%sub2_seq]|Hji].
    + lia.
    + apply fo_comm. intros x y Hx Hy. split; [|by eapply Hp]. apply not_true_iff_false. intros Hcl.
      apply sub2_lookup in Hji as (a&b&Ha%laid_in_lookup&Hb%laid_in_lookup&Hab).
      assert (lb (laid s) (own s i) (own s j) ∨ own s i = own s j) as [Hlb|E].
      { destruct (v_dep i j x y Hij Hx Hy) as [?|[Hq|[_ ?]]]; auto; [right; by eapply Hov|].
        left. by destruct (v_pre _ _ Hq) as (_&_&?). }
      * destruct Hlb as (b'&a'&Hb'&Ha'&?); [by eapply elem_of_list_lookup_2|].
        assert (a' = a) as -> by by eapply NoDup_lookup. assert (b' = b) as -> by by eapply NoDup_lookup. lia.
      * rewrite E in Hb. assert (a = b) by by eapply NoDup_lookup. lia.
    + intros t i' [? _]%idx_elem. done.
Qed.
(** The committed image is what the log leads to, and replay of the records' patches as
    [Replay] defines it. *)
Theorem committed_is_log c c' : iinit c → isteps c c' →
  length (log c'.2) = length (recs c'.1) ∧ ∀ o, com c'.2 o = after (log c'.2) o.
Proof. intros Hi Hs. by destruct (reach_iinv _ _ Hi Hs). Qed.
Theorem log_replays (z : val) l :
  ∃ c, lfold z (Some d0) (EPatch false <$> l) = Some c ∧ ∀ o, c o = after l o.
Proof.
  induction l as [|p l IH] using rev_ind; [by exists d0|]. destruct IH as (c&Hc&Ho).
  rewrite fmap_app. csimpl. rewrite lfold_snoc, Hc. simpl. eexists. split; [done|].
  intros o. rewrite after_snoc. unfold ov. destruct (p o); [done|]. apply Ho.
Qed.
(** A record names the places of its own operations; what else it names is as the log before
    it leaves it. *)
Theorem patch_is_own c c' k p ts o v : iinit c → isteps c c' →
  log c'.2 !! k = Some p → recs c'.1 !! k = Some ts → p o = Some v →
  (∃ i x, hist c'.1 !! i = Some x ∧ tch x o = true ∧ own c'.1 i ∈ ts) ∨ v = after (take k (log c'.2)) o.
Proof. intros Hi Hs. destruct (reach_iinv _ _ Hi Hs). eauto. Qed.
(** When all operations that touch a place are laid, its committed and current value are the
    same; also where the newest value counts. *)
Theorem drained c c' o : iinit c → isteps c c' →
  (plain c'.1 o ∨ ∀ i x, hist c'.1 !! i = Some x → ad x o = false) →
  (∀ i x, hist c'.1 !! i = Some x → tch x o = true → own c'.1 i ∈ laid c'.1) →
  com c'.2 o = cur c'.2 o.
Proof.
  intros Hi Hs Hk Hl. pose proof (reach_iinv _ _ Hi Hs) as []. destruct Hk as [Hp|Ha].
  - rewrite i_log0, <-(firstn_all (log _)), (log_is_commits c c') by done. rewrite i_cur0. unfold commit_order.
    rewrite laid_in_all by lia.
    rewrite (run_filter _ _ _ (λ _, True)) by (intros i x _ Hx Ht; split; [done|by eauto]).
    f_equal. clear. induction (seq _ _) as [|i l IH]; [done|]. rewrite filter_cons. by rewrite decide_True, IH.
  - destruct (i_late0 o Ha) as [?|(i&x&Hx&Ht&Hn)]; [done|]. destruct Hn. eauto.
Qed.
(** What a record takes from the committed image it lies over are the counters; from the
    newest image, the places for which that is the rule. *)
Theorem lay_reads m new c c' ts t o : t ∈ ts → msk m t o = true ∨ lat m t o = true →
  foldl (lay1 m new) c ts o = foldl (lay1 m new) c' ts o.
Proof.
  rewrite !fold_lay1. generalize (c o) (c' o). induction ts as [|u ts IH]; intros v v' Ht Hm; simpl; [by apply elem_of_nil in Ht|].
  apply elem_of_cons in Ht as [->|Ht]; [|by apply IH]. by destruct Hm as [->| ->]; [destruct (lat m u o)|].
Qed.
Theorem lay_newest m new new' c ts o : (∀ t, t ∈ ts → lat m t o = false) →
  foldl (lay1 m new) c ts o = foldl (lay1 m new') c ts o.
Proof.
  rewrite !fold_lay1. generalize (c o). induction ts as [|u ts IH]; intros v Hl; simpl; [done|].
  rewrite (Hl u) by left. apply IH. intros. apply Hl. by right.
Qed.
(** A transaction that is alone on a place freezes what laying it now would give: over the
    same committed image, its record may take the frozen image as it is. *)
Theorem alone c c' t o : iinit c → isteps c c' → plain c'.1 o → ph c'.1 t = PRun →
  (∀ i x, hist c'.1 !! i = Some x → tch x o = true → own c'.1 i = t ∨ own c'.1 i ∈ laid c'.1) →
  cur c'.2 o = if msk c'.2 t o then cur c'.2 o else plus (com c'.2 o) (sum c'.2 t o).
Proof.
  intros Hi Hs Hp Ht Hl. pose proof (reach_iinv _ _ Hi Hs) as []. destruct c' as [s m]; simpl in *.
  destruct (msk m t o) eqn:Em; [done|]. rewrite i_msk0 in Em by by left.
  assert (anyb (hist s) (λ x, lt x o) (idx s t) = false) as El.
  { apply not_true_iff_false. intros (i&x&_&Hx&Hlx)%anyb_spec. by rewrite (Hp i x) in Hlx. }
  rewrite i_sum0 by by left. rewrite <-run_sum by done. rewrite i_log0, <-(firstn_all (log m)).
  pose proof (log_is_commits c (s, m) (length (log m)) o Hi Hs Hp) as E. simpl in E. rewrite E. clear E.
  unfold commit_order. rewrite laid_in_all by lia. rewrite (run_filter _ _ _ (λ i, own s i ≠ t)).
  - rewrite i_cur0, <-run_all_app. apply reorder; [apply filter_split|]. intros i j w Hij%sub2_seq' Hji.
    apply sub2_app in Hji as [Hji%sub2_seq|[[Hj Hit]|Hji%sub2_seq]]; [lia| |lia].
    apply elem_of_list_filter in Hj as [Hj _], Hit as [Hit _]. apply fo_comm. intros x y Hx Hy. split; [|by eapply Hp].
    apply not_true_iff_false. intros Hcl. destruct i_b0. destruct (v_dep i j x y Hij Hx Hy) as [?|[Hq|[Hla _]]].
    + right. by eapply Hov.
    + congruence.
    + destruct (v_pre _ _ Hq) as (Hq'&_). rewrite Hit in Hq'. destruct Hq'; congruence.
    + apply v_laid in Hla. congruence.
  - intros i x _ Hx Htx. destruct (Hl i x Hx Htx) as [E|E].
    + split; [|done]. intros Hla. destruct i_b0. apply v_laid in Hla. congruence.
    + split; [|done]. intros _ Eo. destruct i_b0. apply v_laid in E. congruence.
Qed.

(** Whatever streams do, their images can follow: the theorems are not empty. *)
Theorem images_follow s s' : binit s → bsteps str rel s s' → ∀ m, ∃ m', isteps (s, m) (s', m').
Proof.
  intros Hi Hs. assert (∀ t, ph s t = PRun → ∃ i, i < length (hist s) ∧ own s i = t) as Hne
    by (red in Hi; by subst s). clear Hi.
  induction Hs as [s|s1 s2 s3 H1 H2 IH]; intros m; [exists m; constructor|].
  assert ((∀ t, ph s2 t = PRun → ∃ i, i < length (hist s2) ∧ own s2 i = t) ∧ ∃ m2, istep (s1, m) (s2, m2)) as [Hne2 [m2 Hm2]];
    [|destruct (IH Hne2 m2) as [m3 Hm3]; exists m3; by econstructor].
  clear IH H2. pose proof H1 as Hst.
  destruct H1 as [x M id E H ow p r lc d q R HM Hr Hrel Hid HE HEr HEl ow' p' r' d' q' Hown Hnew Hp|
    t H ow p r lc d q R p' r' lc' Ht Hp|ts H ow p r lc d q R p' Hnd Hts Hd Hp]; simpl in *.
  - split.
    + intros t Ht. rewrite app_length. simpl. destruct (Hp t) as [[-> _]|[(_&_&?)|(Hti&Hm&E')]]; [|congruence|].
      * exists (length H). split; [lia|done].
      * destruct (Hne t) as (i&Hl&Ho); [congruence|]. exists i. split; [lia|].
        destruct (Hown i Hl) as [[? _]|[_ ->]]; [by rewrite Ho in *|done].
    + set (L := filter (λ u, p u = PRun ∧ (u = id ∨ p' u = PNone)) (remove_dups (ow <$> seq 0 (length H)))).
      eexists. apply (i_commit _ _ m x L); [done|done|apply NoDup_filter, NoDup_remove_dups|].
      intros u. simpl. rewrite Hnew. unfold L. rewrite elem_of_list_filter, elem_of_remove_dups. split; [tauto|].
      intros Hu. split; [done|]. destruct (Hne u) as (i&Hl&<-); [tauto|]. by apply elem_of_list_fmap_1, seq_lt.
  - split.
    + intros u Hu. apply Hne. destruct (Hp u) as [[_ ?]|[_ <-]]; [congruence|done].
    + eexists. apply (i_close _ _ m t); [done..|]. simpl. by destruct (Hp t) as [[_ ?]|[? _]].
  - split.
    + intros u Hu. apply Hne. destruct (Hp u) as [[_ ?]|[_ <-]]; [congruence|done].
    + eexists. by apply (i_lay _ _ m ts (λ _, false)).
Qed.
End images.
