(** The checkpointer's steps, and the first moment after recovery. *)
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


Notation tailmax := (@tailmax addr off byte).

Lemma kimg_some R t u b c : kimg R t u b = Some c → tch (sg R t u b) = true ∧ L R u b = Some c.
Proof. unfold Journal.kimg. by destruct (tch (sg R t u b)). Qed.

Lemma ok_round H G D R a v :
  kp v = KIdle → dt v < a → RI (Disk H G D) R a v →
  RI (Disk (wrm (kimg R (dt v) a) H) G D) R a (Vol (nh v) (hc v) (stt v) (cp v) (KW a (kimg R (dt v) a))).
Proof.
  intros Hkp Hlt Hi. set (img := kimg R (dt v) a).
  assert (Htm : tailmax v = dt v) by (unfold Run.tailmax; by rewrite Hkp).
  assert (Hst : ∀ b c, img b = Some c → taken (stt v b)).
  { intros b c Hc%kimg_some. destruct Hc as [_ HL]. pose proof (i_st _ _ _ _ _ _ _ Hi b) as Hst.
    split; intros E; rewrite E in Hst; destruct Hst as [Hst _]; congruence. }
  assert (Hq : ∀ b c o, img b = Some c → quiet (H b o)).
  { intros b c o Hc. destruct (i_busy _ _ _ _ _ _ _ Hi b o) as [Hb [Hd|[Hcl|(u&i'&Hk&_)]]].
    - by split.
    - by destruct (Hst b c Hc).
    - congruence. }
  assert (Hnc : ∀ b c r, img b = Some c → R !! a = Some r → ¬ covers (r_eff r b)).
  { intros b c r Hc%kimg_some Hr Hcov. destruct (r_eff r b) as [| | |chk c' fr] eqn:E; [done..|].
    destruct (i_cov _ _ _ _ _ _ _ Hi r b chk c' fr Hr E) as (_&HL&_). destruct Hc. congruence. }
  assert (Hg : ∀ b c o, img b = Some c → good R (dt v) a b o (c o)).
  { intros b c o Hc%kimg_some. destruct Hc as [_ HL].
    intros c' Hc'. assert (c' = c) as -> by (unfold Journal.L in HL; congruence).
    eapply gd_self; [|exact HL]. apply (i_good _ _ _ _ _ _ _ Hi); [by left|apply poss_cur]. }
  assert (Hp : ∀ b o w, poss (wrm img H b o) w → poss (H b o) w ∨ ∃ c, img b = Some c ∧ w = c o).
  { intros b o w. unfold wrm. destruct (img b) as [c|] eqn:E; [|by left].
    intros [->|[Hin|Hw]]%poss_begin; [right; eauto|by apply elem_of_nil in Hin|by left|by eapply Hq]. }
  assert (Hsame : ∀ b o, tch (sg R (dt v) a b) = false ∨ L R a b = None → wrm img H b o = H b o).
  { intros b o Hb. unfold wrm, img, Journal.kimg. destruct Hb as [->| ->]; [done|]. by destruct (tch _). }
  constructor; simpl.
  1-8: apply Hi.
  - intros t b o w Ht Hw. assert (t = dt v) as -> by (destruct Ht as [?|Ht]; [done|exact Ht]).
    apply Hp in Hw as [Hw|(c&Hc&->)]; [apply (i_good _ _ _ _ _ _ _ Hi); [by left|exact Hw]|by apply Hg].
  - apply (i_free _ _ _ _ _ _ _ Hi).
  - intros _ r b c fr Hr Hc. destruct (i_unp _ _ _ _ _ _ _ Hi Hlt r b c fr Hr Hc) as (?&Ht&Hx).
    split; [done|]. split; [done|]. intros o w. rewrite Hsame by (by left). apply Hx.
  - intros r b chk c fr Hr Hc. destruct (i_cov _ _ _ _ _ _ _ Hi r b chk c fr Hr Hc) as (?&HL&Hx).
    split; [done|]. split; [done|]. intros o. rewrite Hsame by (by right). apply Hx.
  - pose proof (i_cp _ _ _ _ _ _ _ Hi) as Hc. destruct (cp v) as [| |sn]; [done|done|].
    destruct Hc as (r&Hr&?&?&Hh). exists r. split_and!; try done. intros b o Hcov.
    rewrite Hsame; [by apply Hh|]. right. destruct (r_eff r b) as [| | |chk c' fr] eqn:E; [done..|].
    by destruct (i_cov _ _ _ _ _ _ _ Hi r b chk c' fr Hr E) as (_&HL&_).
  - apply (i_st _ _ _ _ _ _ _ Hi).
  - intros b o. destruct (img b) as [c|] eqn:E.
    + destruct (Hq b c o E) as [Hq1 Hq2]. unfold wrm. rewrite E. simpl. rewrite Hq2, bool_decide_eq_true_2 by done.
      split; [done|]. right. right. exists a, img. split; [done|]. by rewrite E.
    + unfold wrm. rewrite E. destruct (i_busy _ _ _ _ _ _ _ Hi b o) as [? [?|[?|(u&i'&Hk&_)]]]; [by auto..|congruence].
  - apply (i_sbusy _ _ _ _ _ _ _ Hi).
  - intros i. destruct (i_hbusy _ _ _ _ _ _ _ Hi i) as [? [?|[_ [u Hu]]]]; [by auto|congruence].
  - destruct (i_hdr _ _ _ _ _ _ _ Hi) as [H1 H2]. split; [exact H1|]. intros h' Hx.
    destruct (H2 h' Hx) as [?|(u&[Hu|[? Hu]]&_)]; [by left|congruence..].
  - split; [lia|]. split.
    + intros b Ht. simpl in *. unfold img, Journal.kimg. rewrite Ht. intros HL.
      assert (tch (sg R (dt v) a b) = false); [|congruence]. apply (i_free _ _ _ _ _ _ _ Hi); auto.
    + intros b c Hc. split; [by eapply Hst|]. split; [intros r Hr; by eapply Hnc|]. intros o. split.
      * simpl. unfold wrm. by rewrite Hc.
      * apply good_empty. intros c' Hc'. apply kimg_some in Hc as [_ HL]. congruence.
Qed.

Lemma wrh_poss i x D j y : quiet (D j) → poss (wrh i x D j) y → poss (D j) y ∨ j = i ∧ (y = None ∨ y = Some x).
Proof.
  intros Hq. unfold wrh. case_decide as E; [|by left].
  intros [->|[Hy|Hp]]%poss_begin; [by auto| |by left|done].
  apply elem_of_list_singleton in Hy. auto.
Qed.

Lemma ok_tail u img sn H G D R a v :
  kp v = KF u img sn → flushed sn (Disk H G D) → RI (Disk H G D) R a v →
  RI (Disk H G (wrh (negb (nh v)) (hnew v R u) D)) R a (Vol (nh v) (hc v) (stt v) (cp v) (KH u)).
Proof.
  intros Hkp (Fh&_&_) Hi. pose proof (i_kp _ _ _ _ _ _ _ Hi) as Hk. rewrite Hkp in Hk.
  destruct Hk as (Hu&[Hr1 Hr2]&Hsn). simpl in *.
  assert (Hqd : ∀ i, quiet (D i)).
  { intros i. destruct (i_hbusy _ _ _ _ _ _ _ Hi i) as [? [?|[_ [u' Hu']]]]; [done|congruence]. }
  assert (Hgu : ∀ b o w, poss (H b o) w → good R u a b o w).
  { intros b o w Hw. destruct (tch (sg R (dt v) u b)) eqn:Et.
    - destruct (img b) as [c|] eqn:Ei; [|by destruct (Hr1 b Et)].
      destruct (Hr2 b c Ei) as (_&_&Hx). destruct (Hx o) as [Hcur Hg].
      assert (w = c o) as ->; [|exact Hg]. rewrite <-Hcur. apply poss_exact; [apply (i_busy _ _ _ _ _ _ _ Hi b o)| |done].
      rewrite <-(Hsn b o) by congruence. apply Fh.
    - assert (good R (dt v) a b o w) as Hg by (apply (i_good _ _ _ _ _ _ _ Hi); [by left|exact Hw]).
      unfold Inv.good in *. rewrite (sg_split R (dt v) u a) in Hg by lia. by eapply gd_drop. }
  constructor; simpl.
  1-8: apply Hi.
  - intros t b o w Ht Hw. unfold Run.tailmax in Ht. simpl in Ht. destruct Ht as [->| ->]; [|by apply Hgu].
    apply (i_good _ _ _ _ _ _ _ Hi); [by left|exact Hw].
  - apply (i_free _ _ _ _ _ _ _ Hi).
  - apply (i_unp _ _ _ _ _ _ _ Hi).
  - apply (i_cov _ _ _ _ _ _ _ Hi).
  - apply (i_cp _ _ _ _ _ _ _ Hi).
  - apply (i_st _ _ _ _ _ _ _ Hi).
  - intros b o. destruct (i_busy _ _ _ _ _ _ _ Hi b o) as [? [?|[?|(u'&i'&Hk&_)]]]; [by auto..|congruence].
  - apply (i_sbusy _ _ _ _ _ _ _ Hi).
  - intros i. destruct (Hqd i) as [Hq1 Hq2]. unfold wrh. case_decide as E; [|by auto]. subst i. simpl.
    rewrite Hq2, bool_decide_eq_true_2 by done. split; [done|]. right. split; [done|]. by exists u.
  - destruct (i_hdr _ _ _ _ _ _ _ Hi) as [H1 H2]. split.
    + intros x Hx. apply wrh_poss in Hx as [Hx|[E _]]; [by apply H1|by destruct (nh v)|apply Hqd].
    + intros h' Hx. apply wrh_poss in Hx as [Hx|[_ [E|E]]]; [|done| |apply Hqd].
      * destruct (H2 h' Hx) as [?|(u'&[Hu'|[? Hu']]&_)]; [by left|congruence..].
      * right. exists u. split; [by left|]. by injection E.
  - split; [done|]. apply wrh_same.
Qed.

Lemma ok_tail_flush u H G D R a v :
  kp v = KH u → RI (Disk H G D) R a v →
  RI (Disk H G (fih (negb (nh v)) D)) R a
    (Vol (nh v) (hc v) (stt v) (cp v) (KHF u (snapof (Disk H G (fih (negb (nh v)) D))))).
Proof.
  intros Hkp Hi. pose proof (i_kp _ _ _ _ _ _ _ Hi) as Hk. rewrite Hkp in Hk. destruct Hk as [Hu Hcur]. simpl in *.
  assert (Htm : tailmax v = u) by (unfold Run.tailmax; by rewrite Hkp).
  assert (Hp : ∀ i x, poss (fih (negb (nh v)) D i) x ↔ poss (D i) x) by (intros; unfold fih; by case_decide).
  constructor; simpl.
  1-8: apply Hi.
  - intros t b o w Ht. apply (i_good _ _ _ _ _ _ _ Hi). unfold Run.tailmax in Ht. simpl in Ht. by rewrite Htm.
  - apply (i_free _ _ _ _ _ _ _ Hi).
  - apply (i_unp _ _ _ _ _ _ _ Hi).
  - apply (i_cov _ _ _ _ _ _ _ Hi).
  - apply (i_cp _ _ _ _ _ _ _ Hi).
  - apply (i_st _ _ _ _ _ _ _ Hi).
  - intros b o. destruct (i_busy _ _ _ _ _ _ _ Hi b o) as [? [?|[?|(u'&i'&Hk&_)]]]; [by auto..|congruence].
  - apply (i_sbusy _ _ _ _ _ _ _ Hi).
  - intros i. destruct (i_hbusy _ _ _ _ _ _ _ Hi i) as [Hb Hd]. simpl in Hb, Hd. unfold fih.
    case_decide as E; [simpl; by auto|]. destruct Hd as [?|[? _]]; [by auto|done].
  - destruct (i_hdr _ _ _ _ _ _ _ Hi) as [H1 H2]. split; [intros x Hx; apply H1; by apply Hp|].
    intros h' Hx. apply Hp in Hx. destruct (H2 h' Hx) as [?|(u'&[Hu'|[? Hu']]&E)]; [by left| |congruence].
    right. exists u'. split; [|exact E]. right. rewrite Hkp in Hu'. injection Hu' as ->. eauto.
  - split; [done|]. unfold fih. rewrite decide_True by done. simpl. by split.
Qed.

Lemma ok_round_end u sn d R a v :
  kp v = KHF u sn → flushed sn d → RI d R a v →
  RI d R a (Vol (negb (nh v)) (hnew v R u) (stt v) (cp v) KIdle).
Proof.
  intros Hkp (_&_&Fd) Hi. pose proof (i_kp _ _ _ _ _ _ _ Hi) as Hk. rewrite Hkp in Hk.
  destruct Hk as (Hu&Hcur&Hsn).
  assert (Htm : tailmax v = u) by (unfold Run.tailmax; by rewrite Hkp).
  constructor; simpl.
  - apply Hi.
  - apply Hi.
  - split_and!; try done. lia.
  - pose proof (posn_mono R (dt v) u ltac:(lia)). pose proof (i_room _ _ _ _ _ _ _ Hi). lia.
  - intros j r Hj Hr. apply (i_slots _ _ _ _ _ _ _ Hi j r); [lia|done].
  - apply (i_ep _ _ _ _ _ _ _ Hi).
  - apply (i_for _ _ _ _ _ _ _ Hi).
  - apply (i_eps _ _ _ _ _ _ _ Hi).
  - intros t b o w Ht. assert (t = u) as -> by (unfold Run.tailmax in Ht; simpl in Ht; destruct Ht; done).
    apply (i_good _ _ _ _ _ _ _ Hi). right. done.
  - intros b k Hk HL. pose proof (i_len _ _ _ _ _ _ _ Hi).
    eapply (tch_suffix _ (dt v)); [lia|destruct Hk; lia|]. by apply (i_free _ _ _ _ _ _ _ Hi).
  - intros Hlt r b c fr Hr Hc. destruct (i_unp _ _ _ _ _ _ _ Hi ltac:(lia) r b c fr Hr Hc) as (?&Ht&?).
    split; [done|]. split; [|done]. by eapply (tch_suffix _ (dt v)); [lia|lia|].
  - apply (i_cov _ _ _ _ _ _ _ Hi).
  - apply (i_cp _ _ _ _ _ _ _ Hi).
  - apply (i_st _ _ _ _ _ _ _ Hi).
  - intros b o. destruct (i_busy _ _ _ _ _ _ _ Hi b o) as [? [?|[?|(u'&i'&Hk&_)]]]; [by auto..|congruence].
  - apply (i_sbusy _ _ _ _ _ _ _ Hi).
  - intros i. destruct (i_hbusy _ _ _ _ _ _ _ Hi i) as [? [?|[_ [u' Hu']]]]; [by auto|congruence].
  - destruct (i_hdr _ _ _ _ _ _ _ Hi) as [H1 _]. rewrite negb_involutive. split.
    + intros x Hx. rewrite <-Hcur. apply poss_exact; [apply (i_hbusy _ _ _ _ _ _ _ Hi)| |done].
      rewrite <-Hsn. apply Fd.
    + intros h' Hx%H1. injection Hx as ->. left. lia.
  - done.
Qed.

(** Recovery is over: the journal runs on the records that it kept. *)
Lemma ok_open i h k d R a hn :
  wfR N R → fresh_inv zero N d0 d R a i h k → cur (hdrs d (negb i)) = Some hn →
  RI (dclean d) (take k R) k (Vol (negb i) hn (opened zero d0 R k) CIdle KIdle).
Proof.
  intros Hwf (_&Hh&hn'&Hn&Hgen&Hvd&Hrep&Htl&Hfl&Hpos&Ha&Hk&Hsb&Hhome) Hn'.
  assert (hn' = hn) as -> by congruence. clear Hn'.
  assert (Hlen : length (take k R) = k) by (rewrite take_length; lia).
  assert (Hsb' : ∀ i r j, poss (slots (dclean d) i) (Some (r, j)) → r_ep r < h_ep hn).
  { intros j r q Hx%poss_clean. apply (Hsb j r q). rewrite Hx. apply poss_cur. }
  assert (Hnone : ∀ r0, take k R !! k = Some r0 → False).
  { intros r0 Hx%lookup_lt_Some. lia. }
  constructor; simpl; rewrite ?Hlen, ?Htl.
  - lia.
  - intros j r Hr. apply lookup_take_Some in Hr as [Hr Hj].
    rewrite posn_take by lia. apply (Hwf j r Hr).
  - split_and!; try done. rewrite posn_take by lia. done.
  - lia.
  - intros j r Hj. lia.
  - intros r []%Hnone.
  - intros j r q Hx%Hsb' He. lia.
  - intros j r q Hx%Hsb'. lia.
  - intros t b o w Ht ->%poss_clean. assert (t = k) as -> by (unfold Run.tailmax in Ht; simpl in Ht; destruct Ht; congruence).
    apply good_empty. intros c. rewrite L_take by lia. apply Hhome.
  - intros b k' Hk' _. assert (k' = k) as -> by (by destruct Hk'). by rewrite sg_nil.
  - intros Hlt. lia.
  - intros r b chk c fr []%Hnone.
  - done.
  - intros b. unfold opened. rewrite L_take by lia. by destruct (L R k b) eqn:E.
  - intros b o. auto.
  - intros j. auto.
  - intros j. auto.
  - rewrite negb_involutive. split.
    + intros x ->%poss_clean. done.
    + intros h' Hx%poss_clean. rewrite Hh in Hx. injection Hx as ->. by left.
  - done.
Qed.
End steps.
