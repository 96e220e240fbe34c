(** From traces to bytes: if what operations change lies in what the trace says that they refer
    to, then the records of an accepted trace, made as in [Images], lead to the operations that
    the trace names for them, one after the other in the order of their commits. *)
From stdpp Require Import prelude functions list.
From Steadfast Require Import Streams StreamsCheck Reorder Images Bytes.

Section traces.
Context {place val : Type} `{!EqDecision place} (plus : val → val → val) (zero : val).
Context (Hcomm : Comm (=) plus) (Hassoc : Assoc (=) plus) (Hzero : RightId (=) zero plus).
(** Where a place lies: block, first bit, bits. *)
Context (block first bits : place → nat) (Hbits : ∀ o, 0 < bits o).
Context (eds : oper → list (@edit place val)) (d0 : place → val).

Definition used (o : place) (u : use) (r : ref) : Prop :=
  match r with
  | RBits u' b f l => u' = u ∧ b = block o ∧ f ≤ first o ∧ first o + bits o ≤ f + l
  | REnd b => b = block o
  | RObj _ _ => False
  end.
(** The trace tells of every change of [x], or that the block's life begins or ends. *)
Definition told (x : oper) : Prop := ∀ e, e ∈ eds x →
  match e with
  | EWrite o _ => ∃ r, r ∈ o_refs x ∧ used o UWrite r
  | EAdd o _ => ∃ r, r ∈ o_refs x ∧ used o UAdd r
  | ELatest o _ => ∃ r, r ∈ o_refs x ∧ used o ULatest r
  end.
Context (Htold : ∀ x, told x).

Lemma wr_used x o : wr eds x o = true → ∃ r, r ∈ o_refs x ∧ used o UWrite r.
Proof.
  intros ([p v|p v|p v]&He&Hp)%existsb_spec; try done. apply bool_decide_eq_true in Hp as ->. by apply (Htold x _ He).
Qed.
Lemma ad_used x o : ad eds x o = true → ∃ r, r ∈ o_refs x ∧ used o UAdd r.
Proof.
  intros ([p v|p v|p v]&He&Hp)%existsb_spec; try done. apply bool_decide_eq_true in Hp as ->. by apply (Htold x _ He).
Qed.
Lemma lt_used x o : lt eds x o = true → ∃ r, r ∈ o_refs x ∧ used o ULatest r.
Proof.
  intros ([p v|p v|p v]&He&Hp)%existsb_spec; try done. apply bool_decide_eq_true in Hp as ->. by apply (Htold x _ He).
Qed.
Lemma used_conflict o u u' r r' x y : (∀ f f', commute u u' f f' = false) →
  r ∈ o_refs x → r' ∈ o_refs y → used o u r → used o u' r' → relates x y = true.
Proof.
  intros Hc Hx Hy Hr Hr'. apply existsb_spec. exists r. split; [done|]. apply existsb_spec. exists r'. split; [done|].
  specialize (Hbits o). destruct r as [|v b f l|b], r' as [|v' b' f' l'|b']; simpl in *; try done.
  - destruct Hr as (->&->&?&?), Hr' as (->&->&?&?). rewrite Nat.eqb_refl, Hc. simpl. rewrite andb_true_r.
    apply andb_true_iff. split; apply Nat.ltb_lt; lia.
  - destruct Hr as (_&->&_). subst b'. by apply Nat.eqb_refl.
  - destruct Hr' as (_&->&_). subst b. by apply Nat.eqb_refl.
  - subst. by apply Nat.eqb_refl.
Qed.
(** Overlapping places relate, as [Images] wants it. *)
Lemma clash_relates x y o : clash eds x y o = true → relates x y.
Proof.
  intros Hc. apply Is_true_true. unfold clash, tch in Hc. rewrite !orb_true_iff, !andb_true_iff, !orb_true_iff in Hc.
  destruct Hc as [[[[Hx [[Hy|Hy]|Hy]]|[[[Hx|Hx]|Hx] Hy]]|[Hx Hy]]|[Hx Hy]];
    first [apply wr_used in Hx|apply ad_used in Hx|apply lt_used in Hx]; destruct Hx as (r&?&?);
    first [apply wr_used in Hy|apply ad_used in Hy|apply lt_used in Hy]; destruct Hy as (r'&?&?);
    (eapply (used_conflict o _ _ r r' x y); [|done..]); done.
Qed.

Lemma run_chosen (f : oper → bool) (P : nat → Prop) `{∀ i, Decision (P i)} K o v :
  (∀ i x, K !! i = Some x → P i ↔ f x = true) →
  run_all (fo plus eds K o) (filter P (seq 0 (length K))) v = foldl (λ v x, pt plus eds x o v) v (List.filter f K).
Proof.
  induction K as [|x K IH] using rev_ind; intros HP; [done|].
  rewrite app_length. simpl. rewrite Nat.add_1_r, seq_S, filter_app, run_all_app, List.filter_app, foldl_app. simpl.
  rewrite (run_snoc _ _ _ _ _ (filter P (seq 0 _))) by (intros i [_ ?%seq_lt]%elem_of_list_filter; done).
  rewrite IH by (intros i y Hy; apply HP; by apply lookup_app_l_Some).
  assert (P (length K) ↔ f x = true) as Hx by (apply HP; by apply list_lookup_middle).
  rewrite filter_cons, filter_nil. destruct (f x).
  - rewrite decide_True by tauto. unfold run_all, fo. simpl. by rewrite list_lookup_middle.
  - by rewrite decide_False by (intros ?%Hx; done).
Qed.

Lemma run_first K o n v : run_all (fo plus eds K o) (seq 0 n) v = foldl (λ v x, pt plus eds x o v) v (take n K).
Proof.
  revert v. induction n as [|n IH]; intros v; [done|]. rewrite seq_S, run_all_app, IH. unfold run_all, fo. simpl.
  destruct (K !! n) as [x|] eqn:E; [by rewrite (take_S_r _ _ _ E), foldl_app|].
  apply lookup_ge_None in E. by rewrite !take_ge by lia.
Qed.

(** The bytes of an accepted trace. *)
Theorem trace_bytes l c : execs start l = Some c →
  ∃ s m m0, iinit d0 (init_state, m0) ∧
    isteps plus zero o_str relates eds (init_state, m0) (s, m) ∧ hist s = ops_of l ∧ length (log m) = length (lays_of l) ∧
    (∀ k o, (∀ x, x ∈ ops_of l → lt eds x o = false) →
      after d0 (take k (log m)) o =
      foldl (λ v x, pt plus eds x o v) (d0 o) (List.filter (λ x, StreamsCheck.mem (o_id x) (concat (take k (lays_of l)))) (ops_of l))) ∧
    (* where the newest value counts: the first operations, none that is laid missing, no write among them that is not laid *)
    ∀ k o, (∀ x, x ∈ ops_of l → ad eds x o = false) → ∃ n,
      after d0 (take k (log m)) o = foldl (λ v x, pt plus eds x o v) (d0 o) (take n (ops_of l)) ∧
      (∀ i x, ops_of l !! i = Some x → tch eds x o = true → o_id x ∈ concat (take k (lays_of l)) → i < n) ∧
      (∀ i x, ops_of l !! i = Some x → wr eds x o = true → i < n → o_id x ∈ concat (take k (lays_of l))).
Proof.
  intros (s&q&Hs&Hh&HF)%accepted.
  set (m0 := Mem d0 d0 (λ _ _, false) (λ _ _, false) (λ _ _, zero) (λ _ _, false) (λ _ _, zero) [] (λ _, 0) [] : @Images.mem place val).
  assert (iinit d0 (init_state, m0)) as Hi by done.
  destruct (images_follow plus zero o_str relates eds init_state s q m0) as (m&Hm&_); [done..|].
  assert (∀ k i x, hist s !! i = Some x → own s i ∈ laid_in s k ↔ o_id x ∈ concat (take k (lays_of l))) as Hsv.
  { intros k i x Hx. rewrite <-(survivors _ s k i x HF Hx). unfold survives_in, laid_in. split; [|tauto].
    intros ?. split; [by eapply lookup_lt_Some|done]. }
  exists s, m, m0. split_and!; [done..| | |].
  - destruct (committed_is_log plus zero Hcomm Hassoc Hzero o_str relates eds clash_relates d0 _ _ Hi Hm) as [E _].
    simpl in E. rewrite E. by eapply Forall2_length.
  - intros k o Hp. pose proof (log_is_commits plus zero Hcomm Hassoc Hzero o_str relates eds clash_relates d0 _ _ k o Hi Hm) as E.
    simpl in E. rewrite E by (intros i x Hx; apply Hp; rewrite <-Hh; by eapply elem_of_list_lookup_2). clear E.
    rewrite <-Hh. apply run_chosen. intros i x Hx. rewrite mem_spec. by apply Hsv.
  - intros k o Ha. rewrite <-Hh in Ha |- *.
    destruct (log_is_own_life plus zero Hcomm Hassoc Hzero o_str relates eds clash_relates d0 _ _ k o Hi Hm) as (Ev&El&Ew);
      simpl in *; [intros i x Hx; apply Ha; by eapply elem_of_list_lookup_2|].
    exists (moment_in eds (s, m) k o). split_and!.
    + rewrite Ev. apply run_first.
    + intros i x Hx Ht Hin. apply (El i x Hx Ht). by apply (Hsv k i x Hx).
    + intros i x Hx Hw Hn. apply (Hsv k i x Hx). by apply (Ew i x Hx).
Qed.
End traces.
