(** The invariant of the running journal, kept by every step. Among it: nothing is written
    around the log but to released blocks, home never runs ahead of the log, nothing is
    written to a block that an unproved record covers, log space is reused only before the
    durable tail, and no two writes to one cell are under way. *)
From stdpp Require Import prelude functions list.
From Steadfast Require Import Disk Replay Journal Inv Recovery.

Section run.
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

Definition tailmax v : nat := match kp v with KH u | KHF u _ => u | _ => dt v end.
Definition taken (s : stat) : Prop := s ≠ Avail ∧ s ≠ Claimed.
Definition laid_parts d (r : rec) : Prop :=
  ∀ i, i < r_len r → cur (slots d ((r_pos r + i) `mod` N)) = Some (r, i).
Definition round_ok d R (a : nat) v (u : nat) (img : addr → option (off → byte)) : Prop :=
  (∀ b, tch (sg R (dt v) u b) = true → img b ≠ None) ∧
  ∀ b c, img b = Some c → taken (stt v b) ∧ (∀ r, R !! a = Some r → ¬ covers (r_eff r b)) ∧
    ∀ o, cur (home d b o) = c o ∧ good R u a b o (c o).

Record RI d R (a : nat) v : Prop := {
  i_len : a ≤ length R ≤ S a;
  i_wf : wfR N R;
  i_hc : h_rep (hc v) = ep v ∧ h_fl (hc v) = dt v ∧ h_pos (hc v) = posn R (dt v) ∧ h_vd (hc v) = None ∧ dt v ≤ a;
  i_room : posn R (length R) ≤ posn R (dt v) + N;
  i_slots : slots_ok N d R (ep v) (dt v) a;
  i_ep : ∀ r, R !! a = Some r → r_ep r = ep v;
  i_for : foreign d R (ep v) (length R);
  i_eps : eps d (ep v);
  i_good : ∀ t b o w, t = dt v ∨ t = tailmax v → poss (home d b o) w → good R t a b o w;
  i_free : ∀ b k, k = a ∨ k = length R → L R k b = None → tch (sg R (dt v) k b) = false;
  i_unp : dt v < a → ∀ r b c fr, R !! (a - 1) = Some r → r_eff r b = ECover true c fr →
    taken (stt v b) ∧ tch (sg R (dt v) a b) = false ∧ ∀ o w, poss (home d b o) w → w = c o;
  i_cov : ∀ r b chk c fr, R !! a = Some r → r_eff r b = ECover chk c fr →
    taken (stt v b) ∧ L R a b = None ∧ ∀ o, cur (home d b o) = c o ∧ quiet (home d b o) ∧
      (chk = false → length (old (home d b o)) ≤ low (home d b o));
  i_cp : match cp v with
    | CIdle => length R = a
    | CW => ∃ r, R !! a = Some r ∧ laid_parts d r
    | CF sn => ∃ r, R !! a = Some r ∧ laid_parts d r ∧
        (∀ i, i < r_len r → sn_slots sn ((r_pos r + i) `mod` N) = length (old (slots d ((r_pos r + i) `mod` N)))) ∧
        ∀ b o, covers (r_eff r b) → sn_home sn b o = length (old (home d b o))
    end;
  i_st : ∀ b, match stt v b with
    | Used => L R (length R) b ≠ None
    | Avail | Claimed => L R a b = None ∧ L R (length R) b = None
    | Quar s wp => 0 < s ≤ length R ∧ (∀ k, s ≤ k ≤ length R → L R k b = None) ∧
        (∀ j r, s ≤ j → R !! j = Some r → r_eff r b = ENone) ∧
        (∀ r c fr, R !! (s - 1) = Some r → r_eff r b = ECover true c fr → wp = true)
    end;
  i_busy : ∀ b o, bad (home d b o) = false ∧
    (don (home d b o) = length (old (home d b o)) ∨ stt v b = Claimed ∨ ∃ u img, kp v = KW u img ∧ img b ≠ None);
  i_sbusy : ∀ i, bad (slots d i) = false ∧
    (don (slots d i) = length (old (slots d i)) ∨
      cp v = CW ∧ ∃ r, R !! a = Some r ∧ part N (r_pos r) (r_len r) i ≠ None);
  i_hbusy : ∀ i, bad (hdrs d i) = false ∧
    (don (hdrs d i) = length (old (hdrs d i)) ∨ i = negb (nh v) ∧ ∃ u, kp v = KH u);
  i_hdr : (∀ x, poss (hdrs d (nh v)) x → x = Some (hc v)) ∧
    ∀ h', poss (hdrs d (negb (nh v))) (Some h') → h_gen h' < h_gen (hc v) ∨
      (∃ u, (kp v = KH u ∨ ∃ sn, kp v = KHF u sn) ∧ h' = hnew v R u);
  i_kp : match kp v with
    | KIdle => True
    | KW u img => dt v ≤ u ≤ a ∧ round_ok d R a v u img
    | KF u img sn => dt v ≤ u ≤ a ∧ round_ok d R a v u img ∧
        ∀ b o, img b ≠ None → sn_home sn b o = length (old (home d b o))
    | KH u => dt v ≤ u ≤ a ∧ cur (hdrs d (negb (nh v))) = Some (hnew v R u)
    | KHF u sn => dt v ≤ u ≤ a ∧ cur (hdrs d (negb (nh v))) = Some (hnew v R u) ∧
        sn_hdrs sn (negb (nh v)) = length (old (hdrs d (negb (nh v))))
    end }.

Lemma RI_tail d R a v : RI d R a v → dt v ≤ tailmax v ≤ a.
Proof. intros []. destruct i_hc0 as (_&_&_&_&?). unfold tailmax. destruct (kp v); try lia; destruct i_kp0 as [? _]; lia. Qed.

(** ** A cut at any moment *)
Lemma RI_plain d R a v h t : RI d R a v → t = dt v ∨ t = tailmax v →
  h_rep h = ep v → h_tail h = t → h_fl h = t → h_pos h = posn R t → plain zero N d0 d R a h a (length R).
Proof.
  intros Hi Ht Hrep Htl Hfl Hp. pose proof (RI_tail _ _ _ _ Hi) as Htm. destruct Hi.
  assert (dt v ≤ t ≤ a) by (destruct Ht; subst; lia). subst t.
  constructor; try done; try lia.
  - rewrite Hrep. intros j r Hj. apply i_slots0. lia.
  - by rewrite Hrep.
  - intros b o w. by apply i_good0.
  - intros Hn r b Hr. rewrite Hn. destruct (r_eff r b) as [|z p|rv|[] c fr] eqn:E.
    1-3: left; intros o w Hw; eapply good_S; [done|lia|rewrite E; intros []|by apply i_good0].
    + right. exists c, fr. split; [done|]. destruct (i_cov0 _ _ _ _ _ Hr E) as (_&HL&_).
      eapply (tch_suffix _ (dt v)); [lia|lia|]. apply i_free0; auto.
    + left. intros o w Hw. destruct (i_cov0 _ _ _ _ _ Hr E) as (_&HL&Hc).
      destruct (Hc o) as (Hcur&[_ Hbad]&Hlow). eapply good_cover; [done|lia|done| |].
      { eapply (tch_suffix _ (dt v)); [lia|lia|]. apply i_free0; auto. }
      rewrite <-Hcur. apply poss_exact; auto.
  - intros Hlt r b c fr Hr Hc o w Hw. destruct (i_unp0 ltac:(lia) r b c fr Hr Hc) as (_&_&H'). by apply H'.
Qed.
Lemma RI_DI d R a v : RI d R a v → DI d R a.
Proof.
  intros Hi x Hx. pose proof Hi as Hi'. destruct Hi'. destruct i_hdr0 as [Hh1 Hh2].
  pose proof (Hh1 _ (Hx _)) as Hxn. pose proof i_hc0 as (Hrep&Hfl&Hpos&Hvd&Hdt).
  destruct (x (negb (nh v))) as [h'|] eqn:E.
  - destruct (Hh2 h') as [Hg|(u&Hu&->)]; [rewrite <-E; apply Hx| |].
    + exists (nh v), (hc v). split; [split; [done|]; rewrite E; by intros ? [= <-]|].
      unfold hok. rewrite Hvd. split; [done|]. exists a, (length R). by apply (RI_plain d R a v (hc v) (dt v)); auto.
    + exists (negb (nh v)), (hnew v R u). split.
      { split; [done|]. rewrite negb_involutive, Hxn. intros ? [= <-]. simpl. lia. }
      unfold hok. simpl. split; [done|]. exists a, (length R). apply (RI_plain d R a v _ u); try done.
      right. unfold tailmax. by destruct Hu as [->|[? ->]].
  - exists (nh v), (hc v). split; [split; [done|]; by rewrite E|].
    unfold hok. rewrite Hvd. split; [done|]. exists a, (length R). by apply (RI_plain d R a v (hc v) (dt v)); auto.
Qed.

End run.
