(** The bytes of the log: what frozen images ([Images]) lead to. After each prefix of the records a place
    holds what the laid operations make of it; where the newest value counts, what it held at one moment
    of the life that the laid ones say. *)
From stdpp Require Import prelude functions list.
From Steadfast Require Import Replay Streams Reorder Images.

Section bytes.
Context {op stream place val : Type} `{!EqDecision stream} `{!EqDecision place}.
Context (plus : val → val → val) (zero : val).
Context (Hcomm : Comm (=) plus) (Hassoc : Assoc (=) plus) (Hzero : RightId (=) zero plus).
Context (str : op → stream) (rel : op → op → Prop) (eds : op → list (@edit place val)).
Context (Hov : ∀ x y o, clash eds x y o = true → rel x y) (d0 : place → val).
Notation bst := (@bst op stream).
Notation mem := (@mem place val).
Notation wr := (wr eds).
Notation ad := (ad eds).
Notation lt := (lt eds).
Notation tch := (tch eds).
Notation lts := (lts eds).
Notation fo := (fo plus eds).
Notation iinit := (iinit d0).
Notation istep := (istep plus zero str rel eds).
Notation isteps := (isteps plus zero str rel eds).
Notation iinv := (iinv plus zero str rel eds d0).
Notation after := (after d0).
Notation reach_iinv := (reach_iinv plus zero Hcomm Hassoc Hzero str rel eds Hov d0).
Notation run_filter := (run_filter plus zero Hassoc Hzero eds d0).
Notation fo_comm := (fo_comm plus zero Hcomm Hassoc Hzero eds).

(** The operations of the first [k] records, in log order and as they were committed. *)
Definition log_order (s : bst) (k : nat) : list nat := concat (idx s <$> laid_in s k).
Definition commit_order (s : bst) (k : nat) : list nat := filter (λ i, own s i ∈ laid_in s k) (seq 0 (length (hist s))).
(** Only writes and sums. *)
Definition plain (s : bst) (o : place) : Prop := ∀ i x, hist s !! i = Some x → lt x o = false.

Lemma laid_in_lookup (s : bst) k a t : laid_in s k !! a = Some t → laid s !! a = Some t.
Proof.
  intros H. unfold laid. rewrite <-(take_drop k (recs s)), concat_app. by apply lookup_app_l_Some.
Qed.
Lemma filter_all (l : list nat) : filter (λ _, True) l = l.
Proof. induction l as [|i l IH]; [done|]. rewrite filter_cons. by rewrite decide_True, IH. Qed.

(** The current image is that of all operations. *)
Theorem current_is_commits c c' o : iinit c → isteps c c' →
  cur c'.2 o = run_all (fo (hist c'.1) o) (seq 0 (length (hist c'.1))) (d0 o).
Proof. intros Hi Hs. by destruct (reach_iinv _ _ Hi Hs). Qed.

(** ** The bytes of the log *)
(** The moment at which the last transaction in the first [k] records that sets [o] closed: the number
    of operations committed by then. *)
Definition moment_in (c : bst * mem) (k : nat) (o : place) : nat := moment eds c.1 (mom c.2) (laid_in c.1 k) o.
(** The log leads to the effect of all operations on a place by then, and of later additions that are laid. An
    operation that wrote or added before is laid; a laid operation that wrote or touched the place did so before. *)
Theorem log_is_moment c c' k o : iinit c → isteps c c' →
  after (take k (log c'.2)) o = run_all (fo (hist c'.1) o)
    (filter (λ i, i < moment_in c' k o ∨ own c'.1 i ∈ laid_in c'.1 k) (seq 0 (length (hist c'.1)))) (d0 o) ∧
  (∀ i x, hist c'.1 !! i = Some x → wr x o || ad x o = true → i < moment_in c' k o → own c'.1 i ∈ laid_in c'.1 k) ∧
  (∀ i x, hist c'.1 !! i = Some x → wr x o || lt x o = true → own c'.1 i ∈ laid_in c'.1 k → i < moment_in c' k o) ∧
  moment_in c' k o ≤ length (hist c'.1).
Proof.
  intros Hi Hs. destruct (reach_iinv _ _ Hi Hs). destruct (i_good k o) as [Hg1 Hg2].
  assert (∀ t, t ∈ laid_in c'.1 k → t ∈ que c'.2) as Hq
    by (intros t Ht%laid_in_sub; apply i_que; right; by apply (v_laid str rel _ i_b)).
  split_and!; [done..| |].
  - intros i x Hx Hw Hin. eapply Nat.lt_le_trans; [apply (i_old _ (Hq _ Hin)); [by eapply lookup_lt_Some|done]|].
    apply moment_le; [done|]. apply anyb_idx. eauto.
  - apply moment_max. intros t Ht%Hq _. by apply i_old.
Qed.
(** A place that no operation adds to holds, after each prefix of the records, its value of one moment: no laid
    operation on it came later, and every write before is laid, so it is a value of its own life. *)
Theorem log_is_own_life c c' k o : iinit c → isteps c c' → (∀ i x, hist c'.1 !! i = Some x → ad x o = false) →
  after (take k (log c'.2)) o = run_all (fo (hist c'.1) o) (seq 0 (moment_in c' k o)) (d0 o) ∧
  (∀ i x, hist c'.1 !! i = Some x → tch x o = true → own c'.1 i ∈ laid_in c'.1 k → i < moment_in c' k o) ∧
  (∀ i x, hist c'.1 !! i = Some x → wr x o = true → i < moment_in c' k o → own c'.1 i ∈ laid_in c'.1 k).
Proof.
  intros Hi Hs Ha. destruct (log_is_moment c c' k o Hi Hs) as (Hv&Hb&Hl&Hn).
  assert (∀ i x, hist c'.1 !! i = Some x → tch x o = true → wr x o || lt x o = true) as Ht.
  { intros i x Hx. unfold tch. rewrite (Ha i x Hx). by rewrite orb_false_r. }
  split_and!; [|by eauto|intros i x Hx Hw; apply (Hb i x Hx); by rewrite Hw].
  rewrite Hv, <-(filter_before (moment_in c' k o) (length (hist c'.1))) by done. apply run_filter.
  intros i x _ Hx Htx. split; [|by left]. intros [?|?]; eauto.
Qed.
(** A later record never brings an older moment. *)
Theorem moment_monotone c k k' o : k ≤ k' → moment_in c k o ≤ moment_in c k' o.
Proof.
  intros Hk. apply moment_max. intros t Ht He. apply (moment_le eds _ (mom c.2)); [|done]. unfold laid_in in *.
  rewrite <-(take_drop k (take k' _)), take_take, Nat.min_l, concat_app by done. apply elem_of_app. by left.
Qed.
(** Where operations only write and add, the log leads to the laid ones, in the order of their commits: whatever
    streams share the current image, of each prefix of the records nothing is lost and nothing else gets in. *)
Theorem log_is_commits c c' k o : iinit c → isteps c c' → plain c'.1 o →
  after (take k (log c'.2)) o = run_all (fo (hist c'.1) o) (commit_order c'.1 k) (d0 o).
Proof.
  intros Hi Hs Hp. destruct (log_is_moment c c' k o Hi Hs) as (->&Hb&_&_). apply run_filter.
  intros i x _ Hx Ht. split; [|by right]. intros [?|?]; [|done]. apply (Hb i x Hx); [|done].
  unfold tch in Ht. by rewrite (Hp i x Hx), orb_false_r in Ht.
Qed.
(** In log order, too. *)
Theorem log_is_operations c c' k o : iinit c → isteps c c' → plain c'.1 o →
  after (take k (log c'.2)) o = run_all (fo (hist c'.1) o) (log_order c'.1 k) (d0 o).
Proof.
  intros Hi Hs Hp. rewrite (log_is_commits c c') by done. destruct (reach_iinv _ _ Hi Hs) as [[] _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _].
  destruct c' as [s m]; simpl in *. apply reorder.
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
(** When all operations that touch a place are laid, its committed and current value are the same. *)
Theorem drained c c' o : iinit c → isteps c c' →
  (∀ i x, hist c'.1 !! i = Some x → tch x o = true → own c'.1 i ∈ laid c'.1) → com c'.2 o = cur c'.2 o.
Proof.
  intros Hi Hs Hl. destruct (committed_is_log c c' Hi Hs) as [El ->]. rewrite (current_is_commits c c') by done.
  rewrite <-(firstn_all (log _)). destruct (log_is_moment c c' (length (log c'.2)) o Hi Hs) as (->&_).
  rewrite <-(filter_all (seq 0 _)) at 2. apply run_filter. intros i x _ Hx Ht. split; [done|].
  intros _. right. rewrite laid_in_all by lia. eauto.
Qed.
(** What a record takes from the committed image it lies over are the counters. *)
Theorem lay_reads (m : mem) c c' ts t o : t ∈ ts → msk m t o = true ∨ lat m t o = true →
  foldl (lay1 plus m) c ts o = foldl (lay1 plus m) c' ts o.
Proof.
  rewrite !fold_lay1. generalize (c o) (c' o). induction ts as [|u ts IH]; intros v v' Ht Hm; simpl; [by apply elem_of_nil in Ht|].
  apply elem_of_cons in Ht as [->|Ht]; [|by apply IH]. by destruct Hm as [->| ->]; rewrite ?orb_true_r.
Qed.
(** A transaction that is alone on a place freezes what laying it now would give: over the
    same committed image, its record may take the frozen image as it is. (What it has given up since
    is in a record that changed that image.) *)
Theorem alone c c' t o : iinit c → isteps c c' → ph c'.1 t = PRun →
  (∀ i x, hist c'.1 !! i = Some x → tch x o = true → own c'.1 i = t ∨ own c'.1 i ∈ laid c'.1) →
  cur c'.2 o = if msk c'.2 t o || lat c'.2 t o then cur c'.2 o else plus (com c'.2 o) (sum c'.2 t o).
Proof.
  intros Hi Hs Ht Hl. pose proof (reach_iinv _ _ Hi Hs) as []. destruct c' as [s m]; simpl in *.
  destruct (msk m t o || lat m t o) eqn:E; [done|]. apply orb_false_iff in E as [Em El].
  rewrite i_msk in Em by by left. rewrite i_run in El by done. rewrite i_sum by by left.
  assert (laid s = laid s ++ []) as Hla by (by rewrite app_nil_r).
  rewrite i_log, <-(firstn_all (log m)). pose proof (i_good (length (log m)) o) as Hg. rewrite laid_in_all in Hg by lia.
  rewrite (good_add plus zero Hcomm Hassoc Hzero str rel eds Hov d0 s (mom m) (laid s) t o); [..|done|done]; [|done|rewrite (v_laid str rel s i_b); congruence|by apply (laid_down str rel s _ [])].
  rewrite i_cur, <-(filter_all (seq 0 _)) at 1. apply run_filter. intros i x _ Hx Htx. split; [|done]. intros _. right.
  rewrite elem_of_app, elem_of_list_singleton. destruct (Hl i x Hx Htx); auto.
Qed.
(** Where operations only write and add, laying does what they do, one after the other. *)
Lemma lay_plain s m ts o v :
  iinv s m → plain s o → (∀ t, t ∈ ts → ph s t = PClosed) →
  foldl (λ v t, if msk m t o || lat m t o then frz m t o else plus v (sum m t o)) v ts =
  run_all (fo (hist s) o) (concat (idx s <$> ts)) v.
Proof.
  intros [] Hpl. revert v. induction ts as [|t ts IH]; intros v Hts; csimpl; [done|].
  assert (ph s t = PClosed) as Ht by (apply Hts; left). rewrite run_all_app, <-IH by (intros; apply Hts; by right). f_equal.
  assert (Hno : lts s t o = false).
  { apply not_true_iff_false. intros (i&x&_&Hx&Hl)%anyb_idx. by rewrite (Hpl i x) in Hl. }
  assert (lat m t o = false) as -> by (apply not_true_iff_false; intros El%i_lat; [congruence|done]).
  rewrite orb_false_r. destruct (msk m t o) eqn:Em; rewrite i_msk in Em by by right.
  - (* the operations of [t] might as well have come last *)
    assert (t ∈ que m) as Htq by (apply i_que; by left). destruct (i_old t Htq) as [Hlen Hold].
    rewrite i_frz by done. rewrite (run_const plus eds _ _ (idx s t) v
      (run_all (fo (hist s) o) (filter (λ i, own s i ≠ t) (seq 0 (mom m t))) (d0 o))) by (by rewrite Em).
    rewrite <-run_all_app. assert (idx s t = filter (λ i, own s i = t) (seq 0 (mom m t))) as ->.
    { unfold idx. rewrite <-(filter_before (mom m t) (length (hist s))), list_filter_filter by done.
      apply filter_ext_in. intros i Hi%seq_lt. split; [auto|tauto]. }
    apply reorder; [apply filter_split|]. intros i j w Hij%sub2_seq' Hji.
    apply sub2_app in Hji as [Hji%sub2_seq|[[Hj Hi]|Hji%sub2_seq]]; [lia| |lia].
    apply elem_of_list_filter in Hj as [Hjt Hj%seq_lt], Hi as [Hit _]. apply fo_comm. intros x y Hx Hy. split; [|by eapply Hpl].
    apply not_true_iff_false. intros Hcl. assert (mom m (own s i) ≤ j) as Hm; [|rewrite Hit in Hm; lia].
    apply (i_new i j x y); [done..|by eapply Hov|by rewrite Hit|congruence].
  - rewrite i_sum by by right. by rewrite (run_sum plus zero Hcomm Hassoc Hzero).
Qed.

(** Whatever streams do, if records are laid in the order of closing, their images can follow: the theorems are not empty. *)
Lemma is_snoc c1 c2 c3 : isteps c1 c2 → istep c2 c3 → isteps c1 c3.
Proof. induction 1; intros; econstructor; eauto; constructor. Qed.
Theorem images_follow s s' q m : binit s → orderly str rel s' q → que m = [] → ∃ m', isteps (s, m) (s', m') ∧ que m' = q.
Proof.
  intros Hi Ho Hq. cut ((∀ t, ph s' t = PRun → ∃ i, i < length (hist s') ∧ own s' i = t) ∧ ∃ m', isteps (s, m) (s', m') ∧ que m' = q); [tauto|].
  induction Ho as [s1 H1|s1 s2 q x Ho [Hne (m1&Hm1&<-)] H1 Hh|s1 s2 q t Ho [Hne (m1&Hm1&<-)] H1 Hh Hr Hc|s1 s2 q ts Ho [Hne (m1&Hm1&<-)] H1 Hr Hsub].
  - red in Hi, H1. subst s s1. split; [done|]. exists m. split; [constructor|done].
  - pose proof H1 as Hst.
    destruct H1 as [y M id E H ow p r lc d q R HM Hr Hrel Hid HE HEr HEl ow' p' r' d' q' Hown Hnew Hp| | ];
      simpl in *; [|by apply (f_equal length) in Hh; rewrite app_length in Hh; simpl in Hh; lia..]. split.
    + intros t Ht. rewrite app_length. simpl. destruct (Hp t) as [[-> _]|[(_&_&?)|(Hti&Hm&E')]]; [|congruence|].
      * exists (length H). split; [lia|done].
      * destruct (Hne t) as (i&Hl&Ho'); [congruence|]. exists i. split; [lia|].
        destruct (Hown i Hl) as [[? _]|[_ ->]]; [by rewrite Ho' in *|done].
    + set (L := filter (λ u, p u = PRun ∧ (u = id ∨ p' u = PNone)) (remove_dups (ow <$> seq 0 (length H)))).
      eexists. split; [eapply is_snoc; [exact Hm1|]; apply (i_commit plus zero str rel eds _ _ m1 x L); [done|done|apply NoDup_filter, NoDup_remove_dups|]|done].
      intros u. simpl. rewrite Hnew. unfold L. rewrite elem_of_list_filter, elem_of_remove_dups. split; [tauto|].
      intros Hu. split; [done|]. destruct (Hne u) as (i&Hl&<-); [tauto|]. by apply elem_of_list_fmap_1, seq_lt.
  - destruct (close_facts str rel _ _ _ H1 Hh Hr Hc) as (Eo&_&Ep). split.
    + intros u Hu. rewrite Hh, Eo. apply Hne. rewrite <-Ep; [done|]. congruence.
    + eexists. split; [eapply is_snoc; [exact Hm1|]; by apply (i_close plus zero str rel eds _ _ m1 t)|done].
  - destruct (lay_facts str rel _ _ _ H1 Hr) as (Eo&Eh&Hc&Ep). split.
    + intros u Hu. rewrite Eh, Eo. apply Hne. rewrite <-Ep; [done|]. intros [_ ?]%Hc. congruence.
    + eexists. split; [eapply is_snoc; [exact Hm1|]; by apply (i_lay plus zero str rel eds _ _ m1 ts (λ _, false))|done].
Qed.
End bytes.
