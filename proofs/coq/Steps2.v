(** The committer's steps: laying, the flush, the acknowledgement; release from quarantine. *)
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


Lemma taken_after n (e : eff off byte) s : taken s → taken (stat_after n e s).
Proof. intros H. destruct e as [| | |? ? []]; simpl; [done|by split..]. Qed.
Lemma lookup_new {A} (l : list A) x j y : (l ++ [x]) !! j = Some y → l !! j = Some y ∨ j = length l ∧ y = x.
Proof.
  intros [H|[H1 H2]]%lookup_app_Some; [by left|right].
  apply list_lookup_singleton_Some in H2 as [? <-]. split; [lia|done].
Qed.
Lemma lookup_last {A} (l : list A) x : (l ++ [x]) !! length l = Some x.
Proof. rewrite lookup_app_r, Nat.sub_diag by done. done. Qed.

Section lay.
Context (r : rec) (H : addr → off → cell byte) (G : nat → cell (option (rec * nat))) (D : bool → cell (option hdr)).
Context (R : list rec) (a : nat) (v : vol).
Let d := Disk H G D.
Let d' := Disk H (wrs N r G) D.
Let R' := R ++ [r].
Let v' := Vol (nh v) (hc v) (λ b, stat_after (length R) (r_eff r b) (stt v b)) CW (kp v).
Hypothesis Hcp : cp v = CIdle.
Hypothesis Hseq : r_seq r = length R.
Hypothesis Hfl : r_fl r = a.
Hypothesis Hep : r_ep r = ep v.
Hypothesis Hpos : r_pos r = posn R (length R).
Hypothesis Hlen : 0 < r_len r.
Hypothesis Hroom : posn R (length R) + r_len r ≤ posn R (dt v) + N.
Hypothesis Hlay : ∀ b, layok d R v r b.
Hypothesis Hi : RI d R a v.

Lemma lay_n : length R = a.
Proof. pose proof (i_cp _ _ _ _ _ _ _ Hi) as E. by rewrite Hcp in E. Qed.
Lemma lay_dt : dt v ≤ a.
Proof. apply Hi. Qed.
Lemma lay_n' : length R' = S a.
Proof. unfold R'. rewrite app_length. simpl. rewrite lay_n. lia. Qed.
Lemma lay_at : R' !! a = Some r.
Proof. rewrite <-lay_n. apply lookup_last. Qed.
Lemma lay_old j r0 : j < a → R' !! j = Some r0 → R !! j = Some r0.
Proof. intros Hj Hr. apply lookup_new in Hr as [?|[-> ?]]; [done|]. rewrite lay_n in Hj. lia. Qed.
Lemma lay_le_N : r_len r ≤ N.
Proof. pose proof lay_dt. pose proof lay_n. pose proof (posn_mono R (dt v) (length R)). lia. Qed.
Lemma lay_quiet i : quiet (G i).
Proof. destruct (i_sbusy _ _ _ _ _ _ _ Hi i) as [? [?|[? _]]]; [done|congruence]. Qed.
Lemma lay_poss i x : poss (wrs N r G i) x →
  poss (G i) x ∨ ∃ j, part N (r_pos r) (r_len r) i = Some j ∧ (x = None ∨ x = Some (r, j)).
Proof.
  unfold wrs. destruct (part N (r_pos r) (r_len r) i) as [j|]; [|by left].
  intros [->|[Hx|Hp]]%poss_begin; [by right; eauto| |by left|apply lay_quiet].
  apply elem_of_list_singleton in Hx. right. eauto.
Qed.
Lemma lay_wf : wfR N R'.
Proof.
  intros j r0 Hr. apply lookup_new in Hr as [Hr|[-> ->]].
  - destruct (i_wf _ _ _ _ _ _ _ Hi j r0 Hr) as (?&?&?&?&?). unfold R'.
    rewrite posn_app; [done|]. apply lookup_lt_Some in Hr. lia.
  - unfold R'. rewrite posn_app by lia.
    split_and!; [exact Hseq|by rewrite Hfl, lay_n|exact Hpos|exact Hlen|apply lay_le_N].
Qed.
Lemma lay_slots : slots_ok N d' R' (ep v) (dt v) a.
Proof.
  intros j r0 Hj Hr. apply lay_old in Hr; [|lia].
  destruct (i_slots _ _ _ _ _ _ _ Hi j r0 Hj Hr) as [He Hs]. split; [exact He|].
  intros i x Hi' Hx. apply lay_poss in Hx as [Hx|(j'&Hpart&_)]; [by apply Hs|]. exfalso.
  destruct (i_wf _ _ _ _ _ _ _ Hi j r0 Hr) as (_&_&Hp&_&_).
  pose proof (posn_S R j r0 Hr) as HS. pose proof (posn_mono R (S j) a ltac:(lia)).
  pose proof (posn_mono R (dt v) j ltac:(lia)).
  assert (r_pos r = posn R a ∧ posn R a + r_len r ≤ posn R (dt v) + N) as [Hp1 Hp2].
  { rewrite <-lay_n. by split. }
  apply part_some in Hpart as [Hj' E]. apply (mod_inj N (posn R (dt v))) in E; lia.
Qed.
Lemma lay_foreign : foreign d' R' (ep v) (length R').
Proof.
  intros i r0 j Hp He. rewrite lay_n'. apply lay_poss in Hp as [Hp|(j'&_&[Hx|Hx])]; [|done|].
  - destruct (i_for _ _ _ _ _ _ _ Hi i r0 j Hp He) as [Hl Hr]. rewrite lay_n in Hl. split; [lia|].
    unfold R'. rewrite lookup_app_l; [exact Hr|]. rewrite lay_n. exact Hl.
  - injection Hx as -> ->. rewrite Hseq, lay_n. split; [lia|apply lay_at].
Qed.
Lemma lay_eps : eps d' (ep v).
Proof.
  intros i r0 j Hp. apply lay_poss in Hp as [Hp|(j'&_&[Hx|Hx])]; [|done|].
  - by apply (i_eps _ _ _ _ _ _ _ Hi i r0 j).
  - injection Hx as -> ->. by rewrite Hep.
Qed.
Lemma lay_L b : L R' (S a) b = lstep zero (L R a b) (r_eff r b).
Proof. rewrite (L_S _ _ _ _ _ _ lay_at). unfold R'. rewrite L_app; [done|]. by rewrite lay_n. Qed.
Lemma lay_L_old k b : k ≤ a → L R' k b = L R k b.
Proof. intros. unfold R'. apply L_app. by rewrite lay_n. Qed.
Lemma lay_sg_old t k b : k ≤ a → sg R' t k b = sg R t k b.
Proof. intros. unfold R'. apply sg_app. by rewrite lay_n. Qed.
Lemma lay_free b k : k = a ∨ k = length R' → L R' k b = None → tch (sg R' (dt v) k b) = false.
Proof.
  rewrite lay_n'. intros [->| ->].
  - rewrite lay_L_old, lay_sg_old by done. apply (i_free _ _ _ _ _ _ _ Hi). by left.
  - rewrite lay_L, (sg_S _ _ _ _ _ lay_at lay_dt), tch_snoc, lay_sg_old by done.
    assert (L R a b = None → tch (sg R (dt v) a b) = false) as Hf by (apply (i_free _ _ _ _ _ _ _ Hi); by left).
    pose proof (Hlay b) as Hl. pose proof (i_st _ _ _ _ _ _ _ Hi b) as Hst. unfold layok in Hl.
    rewrite lay_n in Hl, Hst. destruct (r_eff r b) as [|[] p|[]|chk c fr]; simpl; [done|done| |done| |].
    + rewrite Hl in Hst. by destruct (L R a b).
    + intros _. by apply Hl.
    + intros _. apply Hf. destruct Hl as [Hl _]. rewrite Hl in Hst. apply Hst.
Qed.
Lemma lay_unp : dt v < a → ∀ r0 b c fr, R' !! (a - 1) = Some r0 → r_eff r0 b = ECover true c fr →
    taken (stt v' b) ∧ tch (sg R' (dt v) a b) = false ∧ ∀ o w, poss (H b o) w → w = c o.
Proof.
  intros Hlt r0 b c fr Hr Hc. apply lay_old in Hr; [|lia].
  destruct (i_unp _ _ _ _ _ _ _ Hi Hlt r0 b c fr Hr Hc) as (?&?&?).
  rewrite lay_sg_old by done. split; [by apply taken_after|]. by split.
Qed.
Lemma lay_claimed b : covers (r_eff r b) → stt v b = Claimed.
Proof. pose proof (Hlay b) as Hl. unfold layok in Hl. destruct (r_eff r b); try done. intros _. apply Hl. Qed.
Lemma lay_cov r0 b chk c fr : R' !! a = Some r0 → r_eff r0 b = ECover chk c fr →
    taken (stt v' b) ∧ L R' a b = None ∧ ∀ o, cur (H b o) = c o ∧ quiet (H b o) ∧
      (chk = false → length (old (H b o)) ≤ low (H b o)).
Proof.
  rewrite lay_at. intros [= <-] Hc. pose proof (Hlay b) as Hl. unfold layok in Hl. rewrite Hc in Hl.
  destruct Hl as [Hcl Hl]. split; [simpl; rewrite Hc; simpl; by destruct fr|].
  pose proof (i_st _ _ _ _ _ _ _ Hi b) as Hst. rewrite Hcl in Hst. rewrite lay_L_old by done.
  split; [apply Hst|]. intros o. destruct (Hl o) as (?&?&?). split; [done|]. split; [|done].
  split; [done|]. apply (i_busy _ _ _ _ _ _ _ Hi b o).
Qed.
Lemma lay_st b : match stt v' b with
    | Used => L R' (length R') b ≠ None
    | Avail | Claimed => L R' a b = None ∧ L R' (length R') b = None
    | Quar s wp => 0 < s ≤ length R' ∧ (∀ k, s ≤ k ≤ length R' → L R' k b = None) ∧
        (∀ j r, s ≤ j → R' !! j = Some r → r_eff r b = ENone) ∧
        (∀ r c fr, R' !! (s - 1) = Some r → r_eff r b = ECover true c fr → wp = true)
    end.
Proof.
  rewrite lay_n'. pose proof (Hlay b) as Hl. pose proof (i_st _ _ _ _ _ _ _ Hi b) as Hst.
  rewrite lay_n in Hst. simpl. rewrite lay_n. unfold layok in Hl.
  assert (Hq : ∀ wp, lstep zero (L R a b) (r_eff r b) = None →
    (∀ c fr, r_eff r b = ECover true c fr → wp = true) →
    0 < S a ≤ S a ∧ (∀ k, S a ≤ k ≤ S a → L R' k b = None) ∧
        (∀ j r, S a ≤ j → R' !! j = Some r → r_eff r b = ENone) ∧
        (∀ r c fr, R' !! (S a - 1) = Some r → r_eff r b = ECover true c fr → wp = true)).
  { intros wp HL Hwp. split; [lia|]. split; [intros k Hk; replace k with (S a) by lia; by rewrite lay_L|].
    split; [intros j r0 Hj Hr; apply lookup_lt_Some in Hr; rewrite lay_n' in Hr; lia|].
    intros r0 c fr. replace (S a - 1) with a by lia. rewrite lay_at. intros [= <-]. apply Hwp. }
  destruct (r_eff r b) as [|z p|rv|chk c fr] eqn:E; simpl.
  - destruct (stt v b) as [|s wp| |].
    + rewrite lay_L, E. exact Hst.
    + destruct Hst as (Hs&HL&HN&Hwp). split; [lia|]. split_and!.
      * intros k Hk. destruct (decide (k = S a)) as [->|].
        { rewrite lay_L, E. simpl. apply HL. lia. }
        rewrite lay_L_old by lia. apply HL. lia.
      * intros j r0 Hj Hr. apply lookup_new in Hr as [Hr|[_ ->]]; [by eapply HN|exact E].
      * intros r0 c fr Hr. apply lay_old in Hr; [|lia]. by eapply Hwp.
    + rewrite lay_L, lay_L_old, E by done. exact Hst.
    + rewrite lay_L, lay_L_old, E by done. exact Hst.
  - rewrite lay_L, E. destruct z; simpl; [done|]. rewrite Hl in Hst. by destruct (L R a b).
  - apply Hq; [done|]. done.
  - destruct fr; [|rewrite lay_L, E; simpl; done]. apply Hq; [done|]. by intros ? ? [= -> _ _].
Qed.
Lemma lay_busy b o : bad (H b o) = false ∧
    (don (H b o) = length (old (H b o)) ∨ stt v' b = Claimed ∨ ∃ u img, kp v = KW u img ∧ img b ≠ None).
Proof.
  destruct (i_busy _ _ _ _ _ _ _ Hi b o) as [Hb Hd]. split; [exact Hb|].
  destruct Hd as [Hd|[Hc|Hd]]; [by left| |by right; right].
  pose proof (Hlay b) as Hl. unfold layok in Hl. simpl.
  destruct (r_eff r b) as [|[] p|rv|chk c fr]; simpl; [by right; left| | | |].
  - rewrite Hc in Hl. by destruct Hl.
  - rewrite Hc in Hl. done.
  - rewrite Hc in Hl. by destruct Hl as [[?|?] _].
  - left. destruct Hl as [_ Hl]. apply Hl.
Qed.
Lemma lay_sbusy i : bad (wrs N r G i) = false ∧
    (don (wrs N r G i) = length (old (wrs N r G i)) ∨
      cp v' = CW ∧ ∃ r, R' !! a = Some r ∧ part N (r_pos r) (r_len r) i ≠ None).
Proof.
  destruct (lay_quiet i) as [Hd Hb]. unfold wrs. destruct (part N (r_pos r) (r_len r) i) as [j|] eqn:E; [|by auto].
  simpl. rewrite Hb, bool_decide_eq_true_2 by exact Hd. split; [done|]. right. split; [done|].
  exists r. split; [apply lay_at|]. by rewrite E.
Qed.
Lemma lay_round u img : u ≤ a → round_ok d R a v u img → round_ok d' R' a v' u img.
Proof.
  intros Hu [H1 H2]. split; [intros b; rewrite lay_sg_old by done; apply H1|].
  intros b c Hc. destruct (H2 b c Hc) as (Ht&_&H3). split; [by apply taken_after|]. split.
  - intros r0. rewrite lay_at. intros [= <-] Hcov%lay_claimed. by destruct Ht.
  - intros o. destruct (H3 o) as [? Hg]. split; [done|]. unfold R'. apply good_app; [by rewrite lay_n|exact Hg].
Qed.
Lemma ok_lay : RI d' R' a v'.
Proof.
  pose proof lay_dt. pose proof (RI_tail _ _ _ _ _ _ _ Hi) as Htm.
  assert (Hposn : ∀ k, k ≤ a → posn R' k = posn R k) by (intros; unfold R'; apply posn_app; by rewrite lay_n).
  constructor.
  - rewrite lay_n'. lia.
  - apply lay_wf.
  - simpl. rewrite Hposn by done. apply Hi.
  - rewrite lay_n'. simpl. rewrite (posn_S _ _ _ lay_at), !Hposn by done. pose proof Hroom as Hr'. rewrite lay_n in Hr'. exact Hr'.
  - apply lay_slots.
  - intros r0. rewrite lay_at. by intros [= <-].
  - apply lay_foreign.
  - apply lay_eps.
  - intros t b o w Ht Hw. unfold R'. apply good_app; [by rewrite lay_n|]. by apply (i_good _ _ _ _ _ _ _ Hi).
  - apply lay_free.
  - apply lay_unp.
  - apply lay_cov.
  - simpl. exists r. split; [apply lay_at|]. intros i Hlt. simpl. unfold wrs.
    rewrite part_at; [done|done|apply lay_le_N].
  - apply lay_st.
  - apply lay_busy.
  - apply lay_sbusy.
  - apply (i_hbusy _ _ _ _ _ _ _ Hi).
  - destruct (i_hdr _ _ _ _ _ _ _ Hi) as [H1 H2]. split; [exact H1|]. intros h' Hp.
    destruct (H2 h' Hp) as [?|(u&Hu&->)]; [by left|right]. exists u. split; [exact Hu|].
    unfold hnew. simpl. rewrite Hposn; [done|]. unfold tailmax in Htm. destruct Hu as [Hu|[? Hu]]; rewrite Hu in Htm; lia.
  - pose proof (i_kp _ _ _ _ _ _ _ Hi) as Hk. simpl.
    destruct (kp v) as [|u img|u img sn|u|u sn] in Hk |- *; [done| | | |].
    + destruct Hk as [? Hr]. split; [done|]. apply lay_round; [lia|exact Hr].
    + destruct Hk as (?&Hr&?). split; [done|]. split; [apply lay_round; [lia|exact Hr]|done].
    + destruct Hk as [? Hr]. split; [done|]. etrans; [exact Hr|]. unfold hnew. simpl. rewrite Hposn by lia. done.
    + destruct Hk as (?&Hr&?). split; [done|]. split; [|done]. etrans; [exact Hr|]. unfold hnew. simpl. rewrite Hposn by lia. done.
Qed.
End lay.

Lemma poss_fis (r : rec) G i x : poss (fis N r G i) x ↔ poss (G i) x.
Proof. unfold fis. by destruct (part N (r_pos r) (r_len r) i). Qed.
Lemma ok_commit_flush r H G D R a v :
  cp v = CW → R !! a = Some r → RI (Disk H G D) R a v →
  RI (Disk H (fis N r G) D) R a (Vol (nh v) (hc v) (stt v) (CF (snapof (Disk H (fis N r G) D))) (kp v)).
Proof.
  intros Hcp Hr Hi.
  assert (Hsub : dsub (Disk H (fis N r G) D) (Disk H G D)) by (split; [done|intros i x; apply poss_fis]).
  constructor.
  1-4: apply Hi.
  - eapply slots_ok_sub; [exact Hsub|apply Hi].
  - apply (i_ep _ _ _ _ _ _ _ Hi).
  - eapply foreign_sub; [exact Hsub|apply Hi].
  - eapply eps_sub; [exact Hsub|apply Hi].
  - apply (i_good _ _ _ _ _ _ _ Hi).
  - apply (i_free _ _ _ _ _ _ _ Hi).
  - apply (i_unp _ _ _ _ _ _ _ Hi).
  - apply (i_cov _ _ _ _ _ _ _ Hi).
  - simpl. exists r. destruct (i_wf _ _ _ _ _ _ _ Hi _ _ Hr) as (_&_&_&_&HN).
    pose proof (i_cp _ _ _ _ _ _ _ Hi) as Hc. rewrite Hcp in Hc. destruct Hc as (r'&Hr'&Hp).
    assert (r' = r) as -> by congruence. split; [done|]. split; [|split].
    + intros i Hlt. simpl. unfold fis. rewrite part_at by done. apply (Hp i Hlt).
    + intros i Hlt. unfold fis. rewrite part_at by done. done.
    + intros b o Hcov. destruct (r_eff r b) as [| | |chk c fr] eqn:E; [done..|].
      destruct (i_cov _ _ _ _ _ _ _ Hi r b chk c fr Hr E) as (_&_&Hc). by destruct (Hc o) as (_&[? _]&_).
  - apply (i_st _ _ _ _ _ _ _ Hi).
  - apply (i_busy _ _ _ _ _ _ _ Hi).
  - intros i. simpl. destruct (i_sbusy _ _ _ _ _ _ _ Hi i) as [Hb Hd]. simpl in Hb, Hd. unfold fis.
    destruct (part N (r_pos r) (r_len r) i) eqn:E; [simpl; by auto|]. split; [done|].
    destruct Hd as [Hd|(_&r'&Hr'&Hp)]; [by left|]. exfalso. assert (r' = r) as -> by congruence. done.
  - apply (i_hbusy _ _ _ _ _ _ _ Hi).
  - apply (i_hdr _ _ _ _ _ _ _ Hi).
  - apply (i_kp _ _ _ _ _ _ _ Hi).
Qed.

Lemma ok_ack sn d R a v :
  cp v = CF sn → flushed sn d → RI d R a v →
  RI d R (length R) (Vol (nh v) (hc v) (stt v) CIdle (kp v)).
Proof.
  intros Hcp (Fh&Fs&_) Hi. pose proof (RI_tail _ _ _ _ _ _ _ Hi) as Htm.
  pose proof (i_cp _ _ _ _ _ _ _ Hi) as Hc. rewrite Hcp in Hc. destruct Hc as (r&Hr&Hp&Hs&Hh).
  assert (length R = S a) as Hn.
  { pose proof (i_len _ _ _ _ _ _ _ Hi). apply lookup_lt_Some in Hr. lia. }
  assert (Hnone : ∀ r0, R !! (S a) = Some r0 → False).
  { intros r0 H0%lookup_lt_Some. lia. }
  assert (Hex : ∀ b chk c fr o w, r_eff r b = ECover chk c fr → poss (home d b o) w → w = c o).
  { intros b chk c fr o w E Hw. destruct (i_cov _ _ _ _ _ _ _ Hi r b chk c fr Hr E) as (_&_&Hc).
    destruct (Hc o) as (<-&[_ Hb]&_). apply poss_exact; [done| |done].
    rewrite <-(Hh b o); [apply Fh|by rewrite E]. }
  assert (Htch : ∀ t b, dt v ≤ t ≤ a → covers (r_eff r b) → tch (sg R t a b) = false).
  { intros t b Ht Hcov. destruct (r_eff r b) as [| | |chk c fr] eqn:E; [done..|].
    destruct (i_cov _ _ _ _ _ _ _ Hi r b chk c fr Hr E) as (_&HL&_).
    eapply (tch_suffix _ (dt v)); [lia|lia|]. apply (i_free _ _ _ _ _ _ _ Hi); auto. }
  rewrite Hn. constructor; simpl.
  - lia.
  - apply Hi.
  - destruct (i_hc _ _ _ _ _ _ _ Hi) as (?&?&?&?&?). split_and!; try done. lia.
  - apply (i_room _ _ _ _ _ _ _ Hi).
  - intros j r0 Hj Hr0. destruct (decide (j = a)) as [->|]; [|apply (i_slots _ _ _ _ _ _ _ Hi j r0); [lia|exact Hr0]].
    assert (r0 = r) as -> by congruence. split; [by apply (i_ep _ _ _ _ _ _ _ Hi)|].
    intros i x Hlt Hx. rewrite <-(Hp i Hlt). apply poss_exact; [apply (i_sbusy _ _ _ _ _ _ _ Hi)| |done].
    rewrite <-(Hs i Hlt). apply Fs.
  - intros r0 []%Hnone.
  - apply (i_for _ _ _ _ _ _ _ Hi).
  - apply (i_eps _ _ _ _ _ _ _ Hi).
  - intros t b o w Ht Hw. assert (good R t a b o w) as Hg by by apply (i_good _ _ _ _ _ _ _ Hi).
    assert (dt v ≤ t ≤ a) as Htt by (unfold tailmax in *; simpl in Ht; destruct Ht as [->| ->]; lia).
    destruct (r_eff r b) as [|z p|rv|chk c fr] eqn:E.
    1-3: eapply good_S; [exact Hr|lia|rewrite E; intros []|exact Hg].
    eapply good_cover; [exact Hr|lia|exact E|apply Htch; [done|by rewrite E]|by eapply Hex].
  - intros b k Hk. apply (i_free _ _ _ _ _ _ _ Hi). right. lia.
  - intros _ r0 b c fr. rewrite Nat.sub_0_r, Hr. intros [= <-] E.
    destruct (i_cov _ _ _ _ _ _ _ Hi r b true c fr Hr E) as (Ht&_&_). split; [done|]. split.
    + rewrite (sg_S _ _ _ _ _ Hr) by lia. rewrite tch_snoc, Htch, E; [done|lia|by rewrite E].
    + intros o w. by eapply Hex.
  - intros r0 b chk c fr []%Hnone.
  - lia.
  - intros b. pose proof (i_st _ _ _ _ _ _ _ Hi b) as Hst. rewrite Hn in Hst.
    destruct (stt v b); rewrite ?Hn; [exact Hst|exact Hst|by destruct Hst|by destruct Hst].
  - apply (i_busy _ _ _ _ _ _ _ Hi).
  - intros i. destruct (i_sbusy _ _ _ _ _ _ _ Hi i) as [? [?|[? _]]]; [by auto|congruence].
  - apply (i_hbusy _ _ _ _ _ _ _ Hi).
  - apply (i_hdr _ _ _ _ _ _ _ Hi).
  - pose proof (i_kp _ _ _ _ _ _ _ Hi) as Hk.
    assert (Hround : ∀ u img, u ≤ a → round_ok d R a v u img →
      round_ok d R (S a) (Vol (nh v) (hc v) (stt v) CIdle (kp v)) u img).
    { intros u img Hu [H1 H2]. split; [exact H1|]. intros b c Hc. destruct (H2 b c Hc) as (Ht&Hnc&H3).
      split; [exact Ht|]. split; [intros r0 []%Hnone|]. intros o. destruct (H3 o) as [? Hg]. split; [done|].
      eapply good_S; [exact Hr|lia|by apply Hnc|exact Hg]. }
    destruct (kp v) as [|u img|u img sn'|u|u sn']; [done| | | |].
    + destruct Hk as [? ?]. split; [lia|]. apply Hround; [lia|done].
    + destruct Hk as (?&?&?). split; [lia|]. split; [|done]. apply Hround; [lia|done].
    + destruct Hk as [? ?]. split; [lia|done].
    + destruct Hk as (?&?&?). split; [lia|done].
Qed.

Lemma ok_release b s wp d R a v :
  kp v = KIdle → stt v b = Quar s wp → s < a ∨ (s = a ∧ (wp = false ∨ a ≤ dt v)) → RI d R a v →
  RI d R a (Vol (nh v) (hc v) (upd_st (stt v) b Avail) (cp v) (kp v)).
Proof.
  intros Hkp Hq Hs Hi. pose proof (i_st _ _ _ _ _ _ _ Hi b) as Hst. rewrite Hq in Hst.
  destruct Hst as (Hs1&HL&HN&Hwp). pose proof (i_len _ _ _ _ _ _ _ Hi).
  assert (Hsame : ∀ b', b' ≠ b → upd_st (stt v) b Avail b' = stt v b').
  { intros b' Hne. unfold upd_st. by rewrite decide_False. }
  constructor; simpl.
  1-10: apply Hi.
  - intros Hlt r b' c fr Hr Hc. destruct (i_unp _ _ _ _ _ _ _ Hi Hlt r b' c fr Hr Hc) as (?&?&?).
    rewrite Hsame; [done|]. intros ->. destruct (decide (s = a)) as [->|].
    + rewrite (Hwp r c fr Hr Hc) in Hs. destruct Hs as [?|[_ [?|?]]]; [lia|done|lia].
    + rewrite (HN (a - 1) r) in Hc; [done|lia|exact Hr].
  - intros r b' chk c fr Hr Hc. destruct (i_cov _ _ _ _ _ _ _ Hi r b' chk c fr Hr Hc) as (?&?&?).
    rewrite Hsame; [done|]. intros ->. rewrite (HN a r) in Hc; [done|lia|exact Hr].
  - apply (i_cp _ _ _ _ _ _ _ Hi).
  - intros b'. unfold upd_st. case_decide as E; [subst b'|apply (i_st _ _ _ _ _ _ _ Hi b')].
    split; apply HL; lia.
  - intros b' o. destruct (i_busy _ _ _ _ _ _ _ Hi b' o) as [? [?|[Hc|?]]]; split; auto.
    right. left. rewrite Hsame; [done|]. intros ->. congruence.
  - apply (i_sbusy _ _ _ _ _ _ _ Hi).
  - apply (i_hbusy _ _ _ _ _ _ _ Hi).
  - apply (i_hdr _ _ _ _ _ _ _ Hi).
  - by rewrite Hkp.
Qed.

(** A read of a committed block returns what the records lead to. *)
Lemma read_ok b c d R a v :
  stt v b = Used →
  (∀ o, if tch (sg R (dt v) (length R) b) then ∀ c', L R (length R) b = Some c' → c o = c' o
        else c o = cur (home d b o)) →
  RI d R a v → ∃ c', L R (length R) b = Some c' ∧ ∀ o, c o = c' o.
Proof.
  intros Hu Hc Hi. pose proof (i_st _ _ _ _ _ _ _ Hi b) as Hst. rewrite Hu in Hst.
  destruct (L R (length R) b) as [c'|] eqn:HL; [|done]. exists c'. split; [done|]. intros o. specialize (Hc o).
  destruct (tch (sg R (dt v) (length R) b)) eqn:Ht; [by apply Hc|]. rewrite Hc. clear Hc.
  pose proof (i_len _ _ _ _ _ _ _ Hi). destruct (i_hc _ _ _ _ _ _ _ Hi) as (_&_&_&_&Hdt).
  assert (good R (dt v) a b o (cur (home d b o))) as Hg.
  { apply (i_good _ _ _ _ _ _ _ Hi); [by left|apply poss_cur]. }
  assert (good R (dt v) (length R) b o (cur (home d b o)) ∨ cur (home d b o) = c' o) as [Hg'|E]; [| |done].
  - destruct (decide (length R = a)) as [->|]; [by left|]. assert (length R = S a) as Hn by lia.
    destruct (lookup_lt_is_Some_2 R a) as [r Hr]; [lia|]. rewrite Hn in *.
    destruct (r_eff r b) as [|z p|rv|chk c0 fr] eqn:E.
    1-3: left; eapply good_S; [exact Hr|lia|rewrite E; intros []|exact Hg].
    right. destruct (i_cov _ _ _ _ _ _ _ Hi r b chk c0 fr Hr E) as (_&_&Hc).
    destruct (Hc o) as (->&_&_). rewrite (L_S _ _ _ _ _ _ Hr), E in HL. simpl in HL.
    destruct fr; [done|]. by injection HL as ->.
  - specialize (Hg' _ HL). by rewrite tch_id in Hg'.
Qed.
End steps.
