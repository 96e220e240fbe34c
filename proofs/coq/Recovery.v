(** Recovery's steps keep what the disk promises, and may be cut between any two of them. *)
From stdpp Require Import prelude functions list.
From Steadfast Require Import Disk Replay Journal Inv.

Section recovery.
Context {addr : Type} `{!EqDecision addr} {off byte : Type} (zero : byte).
Context (N : nat) (d0 : addr → option (off → byte)).
Notation rec := (@rec addr off byte).
Notation disk := (@disk addr off byte).
Notation L := (L zero d0).
Notation good := (good zero d0).
Notation hok := (hok zero N d0).
Notation DI := (DI zero N d0).
Implicit Types (R : list rec) (d : disk).

(** Home holds what the first [k] records lead to. *)
Definition home_is d R (k : nat) : Prop := ∀ b o c, L R k b = Some c → cur (home d b o) = c o.
Definition slots_below d (e : nat) : Prop := ∀ i r j, poss (slots d i) (Some (r, j)) → r_ep r < e.

Definition verd_inv d R a i h (l : list rec) : Prop :=
  let k := h_tail h + length l in
  DI d R a ∧ cur (hdrs d i) = Some h ∧ cur (hdrs d (negb i)) = Some (verdict h k) ∧
  hok d R a (verdict h k) ∧ l = drop (h_tail h) (take k R).
Definition repl_inv d R a i h (l : list rec) : Prop :=
  let k := h_tail h + length l in
  DI d R a ∧ cur (hdrs d i) = Some h ∧ (∀ h', cur (hdrs d (negb i)) = Some h' → h_gen h' < h_gen h) ∧
  h_vd h = Some k ∧ hok d R a h ∧ l = drop (h_tail h) (take k R) ∧ home_is d R k ∧
  ∀ j x, poss (hdrs d j) x → x = cur (hdrs d j).
Definition fresh_inv d R a i h k : Prop :=
  DI d R a ∧ cur (hdrs d i) = Some h ∧ ∃ hn, cur (hdrs d (negb i)) = Some hn ∧ h_gen h < h_gen hn ∧
  h_vd hn = None ∧ h_rep hn = h_ep hn ∧ h_tail hn = k ∧ h_fl hn = k ∧ h_pos hn = posn R k ∧
  a ≤ k ∧ k ≤ length R ∧ slots_below d (h_ep hn) ∧ home_is d R k.

Lemma wrh_same i x D : cur (wrh i x D i) = Some x.
Proof. unfold wrh. by rewrite decide_True. Qed.
Lemma wrh_other i x D : wrh (negb i) x D i = D i.
Proof. unfold wrh. rewrite decide_False; [done|]. by destruct i. Qed.

Lemma judged_eq d R e t k : wfR N R → slots_ok N d R e t k → k ≤ length R →
  ∀ l s, t ≤ s → s + length l ≤ k → valids N d e (posn R s) s l →
  ∀ j r, l !! j = Some r → R !! (s + j) = Some r.
Proof.
  intros Hwf Hs Hk. induction l as [|r0 l IH]; intros s Hts Hsl Hv j r Hj; [done|]. simpl in *.
  destruct Hv as [(_&_&_&Hlen&Hc) Hv].
  destruct (lookup_lt_is_Some_2 R s) as [r' Hr']; [lia|].
  destruct (Hwf _ _ Hr') as (_&_&Hp&Hl'&_). destruct (Hs s r') as [_ Hx]; [lia|done|].
  specialize (Hx 0 _ Hl' (poss_cur _)). rewrite Hp, (Hc 0 Hlen) in Hx. injection Hx as ->.
  destruct j as [|j]; simpl in Hj; [injection Hj as <-; by rewrite Nat.add_0_r|].
  replace (s + S j) with (S s + j) by lia. apply IH; [lia|lia| |done].
  by rewrite (posn_S _ _ _ Hr').
Qed.

(** Replay writes what the records lead to, on whatever a good home holds; and until it is
    complete, home stays good. *)
Lemma replay_ok d R a h k (l : list rec) D :
  verd zero N d0 d R a h k → l = drop (h_tail h) (take k R) →
  let d' := dclean d in let d2 := Disk (wrm (rimg zero d' l) (home d')) (slots d') D in
  verd zero N d0 d2 R a h k ∧ home_is d2 R k.
Proof.
  intros Hv Hl. destruct Hv. split.
  - constructor; try done.
    + intros j r Hj Hr. destruct (ve_slots j r Hj Hr) as [? Hx]. split; [done|].
      intros q x Hq ->%poss_clean. apply Hx; [done|apply poss_cur].
    + intros b o v. simpl. unfold wrm, rimg.
      destruct (tch (es l b)) eqn:Et.
      * intros [->|[Hin|Hp]]%poss_begin; [|by apply elem_of_nil in Hin| |apply quiet_clean].
        { intros c Hc. pose proof (ve_good b o _ (poss_cur _)) as Hg.
          subst l. fold (sg R (h_tail h) k b). simpl. rewrite (Hg _ Hc).
          eapply gd_self; [apply Hg|done]. }
        apply poss_clean in Hp as ->. apply ve_good, poss_cur.
      * intros ->%poss_clean. apply ve_good, poss_cur.
  - intros b o c Hc. simpl. unfold wrm, rimg. pose proof (ve_good b o _ (poss_cur _) _ Hc) as Hg.
    subst l. fold (sg R (h_tail h) k b). destruct (tch (sg R (h_tail h) k b)) eqn:Et; simpl; [done|].
    by rewrite tch_id in Hg.
Qed.

Lemma ok_verdict i h l k d R a :
  wfR N R → DI d R a → isbest (λ j, cur (hdrs d j)) i h → h_vd h = None → chain N d h l → cutat d h l k →
  let d' := dclean d in
  verd_inv (Disk (home d') (slots d') (wrh (negb i) (verdict h (h_tail h + k)) (hdrs d'))) R a i h (take k l).
Proof.
  intros Hwf HD Hb Hvd Hch Hcut. pose proof (DI_cur _ _ _ _ _ _ _ _ HD Hb) as Hh. simpl.
  pose proof Hh as Hh'. unfold Inv.hok in Hh'. rewrite Hvd in Hh'. destruct Hh' as (He&an&nn&Hp).
  destruct (scan_finds _ _ _ _ _ _ _ _ _ _ _ Hwf Hp Hch Hcut) as (Ha&Hn&Hl&Hk&Hsl&Hg).
  assert (length (take k l) = k) as Hlk by (rewrite take_length; lia).
  assert (hok (dclean d) R a (verdict h (h_tail h + k))) as Hv.
  { unfold Inv.hok. simpl. split_and!.
    - rewrite Nat.sub_0_r. eapply eps_sub; [apply dsub_clean|done].
    - lia.
    - constructor; simpl; try done; try lia; [apply Hp| |].
      + intros j r Hj Hr. destruct (Hsl j r Hj Hr) as [? Hx]. split; [done|].
        intros q x Hq ->%poss_clean. by apply Hx.
      + intros b o v ->%poss_clean. apply Hg. }
  unfold verd_inv. simpl. rewrite Hlk. split_and!.
  - apply (DI_begin _ _ _ (dclean d) R a i h); [done|simpl; lia|done| |done].
    eapply hok_sub; [apply dsub_clean|done].
  - rewrite wrh_other. simpl. apply Hb.
  - apply wrh_same.
  - eapply hok_sub; [|exact Hv]. done.
  - rewrite Hl at 1. rewrite take_drop_commute, take_take. do 2 f_equal. lia.
Qed.

Lemma hok_fresh d R a hn k :
  a ≤ k → k ≤ length R → h_vd hn = None → h_rep hn = h_ep hn → h_tail hn = k → h_fl hn = k →
  h_pos hn = posn R k → slots_below d (h_ep hn) →
  (∀ b o v c, poss (home d b o) v → L R k b = Some c → v = c o) → hok d R a hn.
Proof.
  intros Ha Hk Hvd Hrep <- Hfl Hp Hs Hh. unfold Inv.hok. rewrite Hvd. split.
  - intros i r j Hr%Hs. lia.
  - exists (h_tail hn), (h_tail hn). constructor; try done; try lia.
    + intros j r Hj. lia.
    + intros i r j Hr%Hs He. lia.
    + intros b o v Hv. apply good_empty. eauto.
Qed.

Lemma ok_nothing i h l d R a :
  wfR N R → DI d R a → isbest (λ j, cur (hdrs d j)) i h → h_vd h = None → chain N d h l → cutat d h l 0 →
  let d' := dclean d in
  fresh_inv (Disk (home d') (slots d') (wrh (negb i) (fresh h ([] : list rec) (S (h_ep h))) (hdrs d'))) R a i h (h_tail h).
Proof.
  intros Hwf HD Hb Hvd Hch Hcut. pose proof (DI_cur _ _ _ _ _ _ _ _ HD Hb) as Hh. simpl.
  pose proof Hh as Hh'. unfold Inv.hok in Hh'. rewrite Hvd in Hh'. destruct Hh' as (He&an&nn&Hp).
  destruct (scan_finds _ _ _ _ _ _ _ _ _ _ _ Hwf Hp Hch Hcut) as (Ha&Hn&_&_&_&Hg).
  rewrite Nat.add_0_r in *.
  assert (slots_below (dclean d) (S (h_ep h))) as Hsb.
  { intros j r q Hr%poss_clean. assert (r_ep r ≤ h_ep h); [|lia]. apply (He j r q). rewrite Hr. apply poss_cur. }
  assert (home_is (dclean d) R (h_tail h)) as Hhome.
  { intros b o c Hc. simpl. by eapply good_nil_inv in Hg. }
  set (hn := fresh h ([] : list rec) (S (h_ep h))).
  assert (h_tail hn = h_tail h) as Ht by (simpl; lia).
  assert (h_pos hn = posn R (h_tail h)) as Hpos by (simpl; rewrite Nat.add_0_r; apply Hp).
  unfold fresh_inv. split_and!.
  - apply (DI_begin _ _ _ (dclean d) R a i h); [done|simpl; lia|done| |].
    + eapply hok_sub; [apply dsub_clean|done].
    + eapply (hok_fresh _ _ _ _ (h_tail h)); try done. intros b o v c ->%poss_clean. apply Hhome.
  - simpl. rewrite wrh_other. simpl. apply Hb.
  - exists hn. simpl. rewrite wrh_same. split_and!; try done; lia.
Qed.

Lemma ok_judged i h l k d R a :
  wfR N R → DI d R a → isbest (λ j, cur (hdrs d j)) i h → h_vd h = Some k → h_tail h + length l = k →
  valids N d (h_rep h) (h_pos h) (h_tail h) l →
  let d' := dclean d in
  repl_inv (Disk (wrm (rimg zero d' l) (home d')) (slots d') (hdrs d')) R a i h l.
Proof.
  intros Hwf HD Hb Hvd <- Hval. pose proof (DI_cur _ _ _ _ _ _ _ _ HD Hb) as Hh. simpl.
  pose proof Hh as Hh'. unfold Inv.hok in Hh'. rewrite Hvd in Hh'. destruct Hh' as (He&Hpos&Hv).
  assert (l = drop (h_tail h) (take (h_tail h + length l) R)) as Hl.
  { apply seg_eq. intros j r Hj. destruct Hv. rewrite ve_pos in Hval.
    eapply (judged_eq d R (h_rep h)); [done|done|done| | |done|done]; lia. }
  destruct (replay_ok d R a h _ l (hdrs (dclean d)) Hv Hl) as [Hv2 Hhome].
  set (d2 := Disk _ _ _) in *.
  assert (hok d2 R a h) as Hok2.
  { unfold Inv.hok. rewrite Hvd. split_and!; [|done|done].
    intros j r q Hr%poss_clean. eapply (He j r q). rewrite Hr. apply poss_cur. }
  split_and!; try done.
  - eapply DI_definite; [exact Hb|done|done].
  - apply Hb.
  - apply Hb.
  - by intros j x ->%poss_clean.
Qed.

Lemma ok_replay i h l d R a :
  verd_inv d R a i h l →
  let d' := dclean d in
  repl_inv (Disk (wrm (rimg zero d' l) (home d')) (slots d') (hdrs d')) R a (negb i) (verdict h (h_tail h + length l)) l.
Proof.
  intros (HD&Hi&Hn&Hok&Hl). simpl. pose proof Hok as (He&Hpos&Hv).
  set (hv := verdict h (h_tail h + length l)) in *.
  destruct (replay_ok d R a hv _ l (hdrs (dclean d)) Hv Hl) as [Hv2 Hhome].
  set (d2 := Disk _ _ _) in *.
  assert (hok d2 R a hv) as Hok2.
  { unfold Inv.hok. split_and!; [|done|done].
    intros j r q Hr%poss_clean. eapply (He j r q). rewrite Hr. apply poss_cur. }
  assert (isbest (λ j, cur (hdrs d2 j)) (negb i) hv) as Hb.
  { split; [done|]. rewrite negb_involutive. simpl. rewrite Hi. intros h' [= <-]. simpl. lia. }
  split_and!; try done; [|apply Hb|by intros j x ->%poss_clean].
  eapply DI_definite; [exact Hb|done|done].
Qed.

Lemma ok_fresh i h l d e R a :
  h_ep h ≤ e → repl_inv d R a i h l →
  let d' := dclean d in
  fresh_inv (Disk (home d') (slots d') (wrh (negb i) (fresh h l e) (hdrs d'))) R a i h (h_tail h + length l).
Proof.
  intros Hle (HD&Hi&Hn&Hvd&Hok&Hl&Hhome&_). simpl.
  pose proof Hok as Hv. unfold Inv.hok in Hv. rewrite Hvd in Hv. destruct Hv as (He&Hpos&Hv).
  assert (slots_below (dclean d) e) as Hsb.
  { intros j r q Hr%poss_clean. assert (r_ep r ≤ h_ep h - 1); [|lia]. apply (He j r q). rewrite Hr. apply poss_cur. }
  assert (h_pos h + sum_list (r_len <$> l) = posn R (h_tail h + length l)) as Hp.
  { destruct Hv. rewrite ve_pos. rewrite (posn_seg R (h_tail h) (h_tail h + length l)) by lia. by rewrite <-Hl. }
  unfold fresh_inv. split_and!.
  - apply (DI_begin _ _ _ (dclean d) R a i h); [split; [done|exact Hn]|simpl; lia|done| |].
    + eapply hok_sub; [apply dsub_clean|done].
    + eapply (hok_fresh _ _ _ _ (h_tail h + length l)); try done; [apply Hv|apply Hv|].
      intros b o v c ->%poss_clean. apply Hhome.
  - simpl. rewrite wrh_other. done.
  - exists (fresh h l e). simpl. rewrite wrh_same. split_and!; try done; [lia|apply Hv|apply Hv].
Qed.
End recovery.
