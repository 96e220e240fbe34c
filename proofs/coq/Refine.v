(** The theorems: every trace of the journal, with cuts anywhere, recoveries cut anywhere
    included, is a trace of the specification; and what the proof rests on, by name. *)
From stdpp Require Import prelude functions list.
From Steadfast Require Import Disk Replay Journal Inv Recovery Run Steps1 Steps2 Steps3.

Section refine.
Context {addr : Type} `{!EqDecision addr} {off byte : Type} (zero : byte).
Context (N : nat) (d0 : addr → option (off → byte)).
Notation rec := (@rec addr off byte).
Notation disk := (@disk addr off byte).
Notation st := (@st addr off byte).
Notation label := (@label addr off byte).
Notation L := (L zero d0).
Notation good := (good zero d0).
Notation RI := (RI zero N d0).
Notation DI := (DI zero N d0).
Notation hok := (hok zero N d0).
Notation step := (step zero N d0).
Notation steps := (steps zero N d0).
Notation spec_step := (spec_step zero d0).
Notation spec_steps := (spec_steps zero d0).
Notation init := (init zero d0).

Definition MI (s : st) : Prop :=
  wfR N (rs s) ∧
  match md s with
  | Run v => RI (dk s) (rs s) (lb s) v
  | MScan => DI (dk s) (rs s) (lb s)
  | MVerd i h l => verd_inv zero N d0 (dk s) (rs s) (lb s) i h l
  | MRepl i h l => repl_inv zero N d0 (dk s) (rs s) (lb s) i h l
  | MFresh i h k => fresh_inv zero N d0 (dk s) (rs s) (lb s) i h k
  end.

Lemma MI_DI s : MI s → DI (dk s) (rs s) (lb s).
Proof.
  intros [_ H]. destruct (md s) as [v| |i h l|i h l|i h k]; [by eapply RI_DI|done|apply H..].
Qed.

Lemma home_is_persist (d d' : disk) R k : dpersist d d' → home_is zero d0 d R k → home_is zero d0 d' R k.
Proof. intros (Ph&_&_) H b o c Hc. destruct (Ph b o) as (_&->&_). by apply H. Qed.
Lemma dpersist_sub (d d' : disk) : dpersist d d' → dsub d' d.
Proof. intros (Ph&Ps&_). split; [intros b o w; by apply poss_persist|intros i x; by apply poss_persist]. Qed.
Lemma MI_persist (d d' : disk) R a m : dpersist d d' → MI (St d R a m) → MI (St d' R a m).
Proof.
  intros Hp [Hwf Hm]. split; [exact Hwf|]. simpl in *. pose proof (dpersist_sub _ _ Hp) as Hsub.
  assert (HDI : DI d R a → DI d' R a).
  { apply DI_sub; [exact Hsub|]. intros i x. destruct Hp as (_&_&Pd). by apply poss_persist. }
  assert (Hc : ∀ i, cur (hdrs d' i) = cur (hdrs d i)) by (intros i; destruct Hp as (_&_&Pd); by destruct (Pd i) as (_&->&_)).
  destruct m as [v| |i h l|i h l|i h k].
  - by eapply ok_persist.
  - by apply HDI.
  - destruct Hm as (HD&H1&H2&H3&H4). unfold verd_inv. rewrite !Hc. split_and!; try done; [by apply HDI|].
    by eapply hok_sub.
  - destruct Hm as (HD&H1&H2&H3&H4&H5&H6&H7). unfold repl_inv. rewrite !Hc.
    split_and!; try done; [by apply HDI|by eapply hok_sub|by eapply home_is_persist|].
    intros j x Hx. rewrite Hc. apply H7. destruct Hp as (_&_&Pd). by eapply poss_persist.
  - destruct Hm as (HD&H1&hn&H2&H3&H4&H5&H6&H7&H8&H9&H10&H11&H12). unfold fresh_inv. rewrite !Hc.
    split; [by apply HDI|]. split; [done|]. exists hn. split_and!; try done; [|by eapply home_is_persist].
    intros j r q Hx. eapply (H11 j r q). by apply Hsub.
Qed.
Lemma DI_survives (d d' : disk) R a : dsurvives d d' → DI d R a → DI d' R a.
Proof.
  intros (Sh&Ss&Sd). apply DI_sub; [split|].
  - intros b o w. apply Sh.
  - intros i x. apply Ss.
  - intros i x. apply Sd.
Qed.

Theorem step_ok l s s' : MI s → step l s s' →
  MI s' ∧ spec_step l (rs s, lb s) (rs s', lb s').
Proof.
  intros Hm Hs. pose proof Hm as [Hwf HI]. destruct Hs; simpl in *.
  - split; [by eapply MI_persist|constructor].
  - split; [|constructor]. split; [exact Hwf|]. simpl. eapply DI_survives; [done|]. by apply MI_DI in Hm.
  - split; [|constructor]. split; [exact Hwf|]. by apply ok_data.
  - split; [|constructor]. split; [exact Hwf|]. by eapply ok_data_done.
  - split; [|constructor]. assert (RI (Disk H (wrs N r G) D) (R ++ [r]) a
         (Vol (nh v) (hc v) (λ b, stat_after (length R) (r_eff r b) (stt v b)) CW (kp v))) as Hi by by apply ok_lay.
    split; [|exact Hi]. apply Hi.
  - split; [|constructor]. split; [exact Hwf|]. by apply ok_commit_flush.
  - split; [|constructor]. split; [exact Hwf|]. by eapply ok_ack.
  - split; [|constructor]. split; [exact Hwf|]. by eapply ok_release.
  - split; [exact Hm|]. destruct (read_ok zero N d0 b c d R a v) as (c'&?&?); [done..|]. by econstructor.
  - split; [|constructor]. split; [exact Hwf|]. by apply ok_round.
  - split; [|constructor]. split; [exact Hwf|]. by apply ok_round_flush.
  - split; [|constructor]. split; [exact Hwf|]. by eapply ok_tail.
  - split; [|constructor]. split; [exact Hwf|]. by apply ok_tail_flush.
  - split; [|constructor]. split; [exact Hwf|]. by eapply ok_round_end.
  - split; [|constructor]. split; [exact Hwf|]. simpl.
    by apply (ok_verdict zero N d0 i h l k (Disk H G D) R a).
  - split; [|constructor]. split; [exact Hwf|]. by eapply (ok_nothing zero N d0 i h l (Disk H G D) R a).
  - split; [|constructor]. split; [exact Hwf|]. by eapply (ok_judged zero N d0 i h l k (Disk H G D) R a).
  - split; [|constructor]. split; [exact Hwf|]. by apply ok_replay.
  - split; [|constructor]. split; [exact Hwf|]. by apply ok_fresh.
  - assert (RI (dclean d) (take k R) k (Vol (negb i) hn (opened zero d0 R k) CIdle KIdle)) as Hi by by eapply ok_open.
    split; [split; [apply Hi|exact Hi]|]. destruct HI as (_&_&hn'&_&_&_&_&_&_&_&Ha&Hk&_). by constructor.
Qed.

Lemma init_MI s : init s → MI s.
Proof.
  intros (d&->&Hh&Hq&Hs&H1&H2). split; [by intros j r Hr|]. simpl.
  constructor; simpl.
  - lia.
  - by intros j r Hr.
  - split_and!; done.
  - unfold posn. simpl. lia.
  - by intros j r _ Hr.
  - by intros r Hr.
  - intros i r j. rewrite Hs. by intros [?|[(?&_&?)|?]].
  - intros i r j. rewrite Hs. by intros [?|[(?&_&?)|?]].
  - intros t b o w Ht Hw. assert (t = 0) as -> by (by destruct Ht). apply good_empty.
    intros c Hc. rewrite (Hh b o c Hc) in Hw. by destruct Hw as [?|[(?&_&?)|?]].
  - intros b k _ _. unfold sg. by rewrite take_nil, drop_nil.
  - lia.
  - by intros r b chk c fr Hr.
  - done.
  - intros b. unfold opened. by destruct (L [] 0 b) eqn:E.
  - intros b o. destruct (Hq b o). auto.
  - intros i. rewrite Hs. auto.
  - intros []; rewrite ?H1, ?H2; auto.
  - split.
    + intros x. rewrite H1. by intros [?|[(?&_&?)|?]].
    + intros h'. rewrite H2. by intros [?|[(?&_&?)|?]].
  - done.
Qed.

Lemma steps_MI ls s s' : MI s → steps ls s s' → MI s'.
Proof. intros Hi Hs. induction Hs as [|l ls s1 s2 s3 H1 H2 IH]; [done|]. apply IH. by eapply step_ok. Qed.

(** (1) Refinement. *)
Theorem journal_refines ls s s' :
  init s → steps ls s s' → spec_steps ls ([], 0) (rs s', lb s').
Proof.
  intros Hi Hs. pose proof (init_MI _ Hi) as Hm. replace ([], 0) with (rs s, lb s) by (by destruct Hi as (?&->&_)).
  clear Hi. induction Hs as [|l ls s1 s2 s3 H1 H2 IH]; [constructor|].
  destruct (step_ok _ _ _ Hm H1) as [Hm2 Hsp]. econstructor; eauto.
Qed.

(** What every block in use holds the moment a recovery has ended. *)
Theorem opened_home ls s s1 k s' b c o :
  init s → steps ls s s1 → step (Open k) s1 s' → L (rs s1) k b = Some c → cur (home (dk s') b o) = c o.
Proof.
  intros Hi Hs Ho Hc. pose proof (steps_MI _ _ _ (init_MI _ Hi) Hs) as [_ Hm].
  inversion Ho; subst; simpl in *. destruct Hm as (_&_&hn'&_&_&_&_&_&_&_&_&_&_&Hh). by apply Hh.
Qed.

(** (2) Covered blocks: if record [j] survives and no later surviving record touches the
    block, it holds what was covered; of any two writers the later one counts. *)
Lemma untouched_L (R : list rec) b j k : j ≤ k → k ≤ length R →
  (∀ i r, j ≤ i < k → R !! i = Some r → r_eff r b = ENone) → L R k b = L R j b.
Proof.
  intros Hj Hk. induction Hj as [|k Hj IH]; intros Hn; [done|].
  destruct (lookup_lt_is_Some_2 R k) as [r Hr]; [lia|].
  rewrite (L_S _ _ _ _ _ _ Hr), (Hn k r) by (done || lia). simpl. apply IH; [lia|].
  intros i r' Hi. apply Hn. lia.
Qed.
Theorem covered_after_recovery ls s s1 k s' j r b chk c o :
  init s → steps ls s s1 → step (Open k) s1 s' →
  j < k → rs s1 !! j = Some r → r_eff r b = ECover chk c false →
  (∀ i r', j < i < k → rs s1 !! i = Some r' → r_eff r' b = ENone) →
  cur (home (dk s') b o) = c o.
Proof.
  intros Hi Hs Ho Hj Hr Hc Hn. eapply opened_home; [done..|].
  assert (k ≤ length (rs s1)) as Hk.
  { pose proof (steps_MI _ _ _ (init_MI _ Hi) Hs) as [_ Hm]. inversion Ho; subst; simpl in *.
    by destruct Hm as (_&_&hn'&_&_&_&_&_&_&_&_&Hk&_). }
  rewrite (untouched_L _ b (S j) k); [|lia|done|intros i r' Hij; apply Hn; lia].
  rewrite (L_S _ _ _ _ _ _ Hr), Hc. done.
Qed.

(** (3) The rules, as they hold in every reachable state of the running journal. *)
Section rules.
Context (ls : list label) (s s' : st) (v : @vol addr off byte).
Hypotheses (Hinit : init s) (Hsteps : steps ls s s') (Hrun : md s' = Run v).
Let R := rs s'. Let a := lb s'.
Lemma reach : RI (dk s') R a v.
Proof. pose proof (steps_MI _ _ _ (init_MI _ Hinit) Hsteps) as [_ Hm]. by rewrite Hrun in Hm. Qed.
(** No write ahead of the log: at any moment, whatever byte a cut leaves of a block that the
    acknowledged records leave in use, replay from the durable tail (or the tail that a header
    under way names) leads it to its content. *)
Theorem no_home_ahead_of_log t b o w : t = h_tail (hc v) ∨ t = tailmax v →
  poss (home (dk s') b o) w → good R t a b o w.
Proof. apply reach. Qed.
(** Until record [a - 1], the last acknowledged, is proved by a durable tail, nothing else can
    be in the blocks that it covers, and they are neither released nor taken for new data. *)
Theorem covered_until_proved r b c fr : h_tail (hc v) < a → R !! (a - 1) = Some r →
  r_eff r b = ECover true c fr → taken (stt v b) ∧ ∀ o w, poss (home (dk s') b o) w → w = c o.
Proof. intros H1 H2 H3. by destruct (i_unp _ _ _ _ _ _ _ reach H1 r b c fr H2 H3) as (?&_&?). Qed.
(** Log space is not reused: the records past the durable tail are whole on the medium. *)
Theorem no_log_reuse : slots_ok N (dk s') R (h_ep (hc v)) (h_tail (hc v)) a.
Proof. apply reach. Qed.
(** Released and claimed blocks are free in every outcome of a cut. *)
Theorem no_reuse_before_durability b : stt v b = Avail ∨ stt v b = Claimed →
  ∀ k, a ≤ k ≤ length R → L R k b = None.
Proof.
  intros Hs k Hk. pose proof (i_len _ _ _ _ _ _ _ reach). pose proof (i_st _ _ _ _ _ _ _ reach b) as Hst.
  assert (k = a ∨ k = length R) as Hk' by lia. by destruct Hs as [E|E]; rewrite E in Hst; destruct Hst, Hk' as [->| ->].
Qed.
(** No two writes to one cell are ever under way. *)
Theorem one_write_in_flight b o i j :
  bad (home (dk s') b o) = false ∧ bad (slots (dk s') i) = false ∧ bad (hdrs (dk s') j) = false.
Proof.
  split; [apply (i_busy _ _ _ _ _ _ _ reach b o)|]. split; [apply (i_sbusy _ _ _ _ _ _ _ reach i)|].
  apply (i_hbusy _ _ _ _ _ _ _ reach j).
Qed.
(** A record fits: it never reaches past the durable tail by more than a lap. *)
Theorem log_fits : posn R (length R) ≤ posn R (h_tail (hc v)) + N.
Proof. apply reach. Qed.
End rules.
End refine.
