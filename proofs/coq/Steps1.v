(** The invariant of the running journal, kept by every step. Among it: nothing is written
    around the log but to released blocks, home never runs ahead of the log, nothing is
    written to a block that an unproved record covers, log space is reused only before the
    durable tail, and no two writes to one cell are under way. *)
From stdpp Require Import prelude functions list.
From Steadfast Require Import Disk Replay Journal Inv Recovery Run.

Section steps.
Context {addr : Type} `{!EqDecision addr} {off byte : Type} (zero : byte).
Context (N : nat) (d0 : addr → option (off → byte)).
Notation rec := (@rec addr off byte).
Notation disk := (@disk addr off byte).
Notation vol := (@vol addr off byte).
Notation L := (L zero d0).
Notation good := (good zero d0).
Notation DI := (DI zero N d0).
Notation kimg := (kimg zero d0).
Notation dt v := (h_tail (hc v)) (only parsing).
Notation ep v := (h_ep (hc v)) (only parsing).
Implicit Types (R : list rec) (d : disk) (v : vol).

Notation RI := (RI zero N d0).
Notation round_ok := (round_ok zero d0).
Notation laid_parts := (laid_parts N).

(** ** The device writes back *)
Lemma ok_persist d d' R a v : dpersist d d' → RI d R a v → RI d' R a v.
Proof.
  intros (Ph&Ps&Pd) [].
  assert (Hsub : dsub d' d) by (split; [intros b o w; by apply poss_persist|intros i x; by apply poss_persist]).
  assert (Eh : ∀ b o, cur (home d' b o) = cur (home d b o) ∧ old (home d' b o) = old (home d b o) ∧
    don (home d' b o) = don (home d b o) ∧ bad (home d' b o) = bad (home d b o) ∧ low (home d b o) ≤ low (home d' b o)).
  { intros b o. destruct (Ph b o) as (?&?&?&?&?). split_and!; done || lia. }
  assert (Es : ∀ i, cur (slots d' i) = cur (slots d i) ∧ old (slots d' i) = old (slots d i) ∧
    don (slots d' i) = don (slots d i) ∧ bad (slots d' i) = bad (slots d i)).
  { intros i. by destruct (Ps i) as (?&?&?&?&?). }
  assert (Ed : ∀ i, cur (hdrs d' i) = cur (hdrs d i) ∧ old (hdrs d' i) = old (hdrs d i) ∧
    don (hdrs d' i) = don (hdrs d i) ∧ bad (hdrs d' i) = bad (hdrs d i)).
  { intros i. by destruct (Pd i) as (?&?&?&?&?). }
  assert (Hr : ∀ u img, round_ok d R a v u img → round_ok d' R a v u img).
  { intros u img [H1 H2]. split; [done|]. intros b c Hc. destruct (H2 b c Hc) as (?&?&H3).
    split_and!; try done. intros o. destruct (Eh b o) as (->&_). apply H3. }
  assert (Hl : ∀ r, laid_parts d r → laid_parts d' r).
  { intros r H i Hi. destruct (Es ((r_pos r + i) `mod` N)) as (->&_). by apply H. }
  constructor; try done.
  - by eapply slots_ok_sub.
  - by eapply foreign_sub.
  - by eapply eps_sub.
  - intros t b o w Ht Hw. apply i_good; [done|]. by apply Hsub.
  - intros Ht r b c fr HR Hc. destruct (i_unp Ht r b c fr HR Hc) as (?&?&H'). split_and!; try done.
    intros o w Hw. by apply H', Hsub.
  - intros r b chk c fr HR Hc. destruct (i_cov r b chk c fr HR Hc) as (?&?&H'). split_and!; try apply H; try done.
    intros o. destruct (H' o) as (?&[? ?]&Hlow). destruct (Eh b o) as (E1&E2&E3&E4&E5).
    rewrite E1, E2. split_and!; [done|split; congruence|]. intros Hchk. specialize (Hlow Hchk). lia.
  - destruct (cp v) as [| |sn]; [done|destruct i_cp as (r&HR&Hp); exists r; auto|]. destruct i_cp as (r&HR&Hp&Hs&Hh).
    exists r. split_and!; [done|by apply Hl| |].
    + intros i Hi. destruct (Es ((r_pos r + i) `mod` N)) as (_&->&_). by apply Hs.
    + intros b o Hc. destruct (Eh b o) as (_&->&_). by apply Hh.
  - intros b o. destruct (Eh b o) as (_&->&->&->&_). done.
  - intros i. destruct (Es i) as (_&->&->&->). done.
  - intros i. destruct (Ed i) as (_&->&->&->). done.
  - destruct i_hdr as [H1 H2]. split; [intros x Hx; eapply H1, poss_persist; eauto|].
    intros h' Hx. eapply H2, poss_persist; eauto.
  - destruct (Ed (negb (nh v))) as (E1&E2&_).
    destruct (kp v); rewrite ?E1, ?E2; [done|destruct i_kp as [? ?]; auto| |done|done].
    destruct i_kp as (?&?&H3). split_and!; try lia; [auto|]. intros b o Hb. destruct (Eh b o) as (_&->&_). auto.
Qed.

(** ** Data around the log *)
Lemma ok_data b c H G D R a v :
  stt v b = Avail → RI (Disk H G D) R a v →
  RI (Disk (wrm (one b c) H) G D) R a (Vol (nh v) (hc v) (upd_st (stt v) b Claimed) (cp v) (kp v)).
Proof.
  intros Hav Hi. pose proof Hi as Hi'. destruct Hi'; simpl in *.
  assert (Hst := i_st b). rewrite Hav in Hst. destruct Hst as [HLa HLn].
  assert (Hround : ∀ u img, round_ok (Disk H G D) R a v u img → img b = None).
  { intros u img [_ Hr]. destruct (img b) as [c'|] eqn:E; [|done].
    destruct (Hr b c' E) as ([? ?]&_). done. }
  assert (Hq : ∀ o, quiet (H b o)).
  { intros o. destruct (i_busy b o) as [Hb [Hd|[Hc|(u&img&Hk&Hb')]]]; [done|congruence|].
    rewrite Hk in i_kp. destruct i_kp as [_ Hr]. by apply Hround in Hr. }
  assert (Hw : ∀ a' o, a' ≠ b → wrm (one b c) H a' o = H a' o).
  { intros a' o Hne. unfold wrm, one. by rewrite decide_False. }
  assert (Hs : ∀ a', a' ≠ b → upd_st (stt v) b Claimed a' = stt v a').
  { intros a' Hne. unfold upd_st. by rewrite decide_False. }
  assert (Hcovb : ∀ r, R !! a = Some r → ¬ covers (r_eff r b)).
  { intros r HR Hc. destruct (r_eff r b) eqn:E; try done. by destruct (i_cov _ _ _ _ _ HR E) as ([? ?]&_). }
  assert (Hr : ∀ u img, round_ok (Disk H G D) R a v u img →
    round_ok (Disk (wrm (one b c) H) G D) R a (Vol (nh v) (hc v) (upd_st (stt v) b Claimed) (cp v) (kp v)) u img).
  { intros u img Hr. pose proof (Hround _ _ Hr) as Hb. destruct Hr as [H1 H2]. split; [done|].
    intros a' c' Hc'. simpl. assert (a' ≠ b) by congruence. rewrite Hs by done.
    destruct (H2 a' c' Hc') as (?&?&H3). split_and!; try done. intros o. rewrite Hw by done. apply H3. }
  constructor; simpl; try done.
  - intros t a' o w Ht Hp. destruct (decide (a' = b)) as [->|Hne]; [|rewrite Hw in Hp by done; by apply i_good].
    intros c' Hc'. unfold Journal.L in HLa. congruence.
  - intros Ht r a' c' fr HR Hc. destruct (i_unp Ht r a' c' fr HR Hc) as ([? ?]&?&H').
    assert (a' ≠ b) by congruence. rewrite Hs by done. split_and!; try done.
    intros o w Hp. rewrite Hw in Hp by done. by apply H'.
  - intros r a' chk c' fr HR Hc. assert (a' ≠ b). { intros ->. apply (Hcovb r HR). by rewrite Hc. }
    rewrite Hs by done. destruct (i_cov r a' chk c' fr HR Hc) as (?&?&H'). split_and!; try done; try apply H0.
    intros o. rewrite Hw by done. apply H'.
  - destruct (cp v) as [| |sn]; try done. destruct i_cp as (r&HR&?&?&H').
    exists r. split_and!; try done. intros a' o Hc. assert (a' ≠ b). { intros ->. by apply (Hcovb r HR). }
    rewrite Hw by done. by apply H'.
  - intros a'. unfold upd_st. case_decide as E; [subst a'; done|]. apply i_st.
  - intros a' o. destruct (decide (a' = b)) as [->|Hne].
    + unfold wrm, one, upd_st. rewrite !decide_True by done. simpl. destruct (Hq o) as [Hq1 Hq2].
      rewrite Hq2, bool_decide_eq_true_2 by done. split; [done|]. right. by left.
    + rewrite Hw, Hs by done. apply i_busy.
  - destruct (kp v) as [|u img|u img sn|u|u sn]; [done|destruct i_kp as [? ?]; auto| |done|done].
    destruct i_kp as (?&Hrk&H3). split_and!; try lia; [auto|]. intros a' o Hb.
    assert (a' ≠ b). { intros ->. by apply Hround in Hrk. } rewrite Hw by done. auto.
Qed.

(** Completions change nothing but what is under way. *)
Lemma fim_facts (img : addr → option (off → byte)) (H : addr → off → cell byte) b o :
  cur (fim img H b o) = cur (H b o) ∧ old (fim img H b o) = old (H b o) ∧
  bad (fim img H b o) = bad (H b o) ∧ low (fim img H b o) = low (H b o) ∧
  (don (fim img H b o) = length (old (H b o)) ∨ img b = None ∧ don (fim img H b o) = don (H b o)) ∧
  (quiet (H b o) → quiet (fim img H b o)) ∧ ∀ w, poss (fim img H b o) w ↔ poss (H b o) w.
Proof.
  unfold fim. destruct (img b) eqn:E; simpl; split_and!; auto.
  intros [? ?]. by split.
Qed.
Lemma RI_fim (img : addr → option (off → byte)) H G D R a v kp' :
  RI (Disk H G D) R a v →
  (∀ b o, don (fim img H b o) = length (old (H b o)) ∨ stt v b = Claimed ∨ ∃ u img', kp' = KW u img' ∧ img' b ≠ None) →
  (kp v = kp' ∨ ∃ u, kp v = KW u img ∧ kp' = KF u img (snapof (Disk (fim img H) G D))) →
  RI (Disk (fim img H) G D) R a (Vol (nh v) (hc v) (stt v) (cp v) kp').
Proof.
  intros [] Hbusy Hkp; simpl in *.
  assert (Hr : ∀ u img', round_ok (Disk H G D) R a v u img' →
    round_ok (Disk (fim img H) G D) R a (Vol (nh v) (hc v) (stt v) (cp v) kp') u img').
  { intros u img' [H1 H2]. split; [done|]. intros b c Hc. destruct (H2 b c Hc) as (?&?&H3).
    split_and!; try done. intros o. simpl. destruct (fim_facts img H b o) as (->&_). apply H3. }
  assert (Htm : tailmax (Vol (nh v) (hc v) (stt v) (cp v) kp') = tailmax v).
  { unfold tailmax. simpl. by destruct Hkp as [->|(u&->&->)]. }
  constructor; simpl; try done.
  - intros t b o w. rewrite Htm. intros Ht Hp. apply i_good; [done|]. by apply (fim_facts img H b o).
  - intros Ht r b c fr HR Hc. destruct (i_unp Ht r b c fr HR Hc) as (?&?&H'). split_and!; try done.
    intros o w Hp. apply H'. by apply (fim_facts img H b o).
  - intros r b chk c fr HR Hc. destruct (i_cov r b chk c fr HR Hc) as (?&?&H').
    split; [done|]. split; [done|]. intros o. destruct (H' o) as (?&?&?).
    destruct (fim_facts img H b o) as (->&->&_&->&_&Hq&_). auto.
  - destruct (cp v) as [| |sn]; try done. destruct i_cp as (r&HR&?&?&H').
    exists r. split_and!; try done. intros b o Hc. destruct (fim_facts img H b o) as (_&->&_). by apply H'.
  - intros b o. destruct (fim_facts img H b o) as (_&E&->&_). rewrite E. split; [apply i_busy|apply Hbusy].
  - intros i. destruct (i_hbusy i) as [? [Hd|[-> [u Hu]]]]; split; auto. right. split; [done|].
    destruct Hkp as [<-|(u'&Hk&->)]; [eauto|congruence].
  - destruct i_hdr as [H1 H2]. split; [done|]. intros h' Hp. destruct (H2 h' Hp) as [?|(u&Hu&->)]; [by left|right].
    exists u. split; [|done]. destruct Hkp as [<-|(u'&Hk&->)]; [done|]. rewrite Hk in Hu. by destruct Hu as [?|[? ?]].
  - destruct Hkp as [<-|(u&Hk&->)].
    + destruct (kp v) as [|u img'|u img' sn|u|u sn]; [done|destruct i_kp as [? ?]; auto| |done|done]. destruct i_kp as (?&?&H3). split_and!; try lia; [auto|].
      intros b o Hb. destruct (fim_facts img H b o) as (_&->&_). auto.
    + rewrite Hk in i_kp. destruct i_kp as [? Hrk]. split_and!; try lia; [by apply Hr|].
      intros b o Hb. simpl. destruct (fim_facts img H b o) as (_&->&_&_&[E|[E _]]&_); [exact E|done].
Qed.
Lemma ok_data_done b c H G D R a v :
  stt v b = Claimed → RI (Disk H G D) R a v → RI (Disk (fim (one b c) H) G D) R a v.
Proof.
  intros Hcl Hi. destruct v as [nhv hcv sv cv kv]. apply (RI_fim (one b c) H G D R a _ kv Hi); [|by left].
  intros a' o. destruct (decide (a' = b)) as [->|Hne]; [right; by left|].
  unfold fim, one. rewrite decide_False by done. apply Hi.
Qed.
Lemma ok_round_flush u img H G D R a v :
  kp v = KW u img → RI (Disk H G D) R a v →
  RI (Disk (fim img H) G D) R a (Vol (nh v) (hc v) (stt v) (cp v) (KF u img (snapof (Disk (fim img H) G D)))).
Proof.
  intros Hk Hi. apply RI_fim; [done| |right; eauto].
  intros b o. destruct (i_busy _ _ _ _ _ _ _ Hi b o) as [_ [Hd|[Hc|(u'&img'&Hk'&Hb)]]]; simpl in *; [|by right; left|].
  - left. destruct (fim_facts img H b o) as (_&_&_&_&[->|[_ ->]]&_); done.
  - left. unfold fim. rewrite Hk in Hk'. injection Hk' as <- <-. by destruct (img b).
Qed.
End steps.
