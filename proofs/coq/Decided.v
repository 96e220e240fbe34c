(** Recovery decides once, and cries wolf never. *)
From stdpp Require Import prelude functions list.
From Steadfast Require Import Disk Replay Journal Inv Recovery Run Steps1 Steps2 Steps3 Refine.

Section decided.
Context {addr : Type} `{!EqDecision addr} {off byte : Type} (zero : byte).
Context (N : nat) (d0 : addr → option (off → byte)).
Notation rec := (@rec addr off byte).
Notation disk := (@disk addr off byte).
Notation st := (@st addr off byte).
Notation label := (@label addr off byte).
Notation step := (step zero N d0).
Notation steps := (steps zero N d0).
Notation init := (init zero d0).
Notation MI := (MI zero N d0).
Notation DI := (DI zero N d0).

(** ** No false alarm *)
Lemma chain_len (d : disk) R a h an nn (l : list rec) :
  wfR N R → plain zero N d0 d R a h an nn → chain N d h l →
  an ≤ h_tail h + length l ∧ h_tail h + length l ≤ nn ∧
  ∀ j r, l !! j = Some r → r_fl r = h_tail h + j.
Proof.
  intros Hwf [] [Hv Hmax].
  pose proof (valids_lookup _ _ _ _ _ pl_for _ _ _ Hv) as Hlk.
  set (t := h_tail h) in *. set (m := t + length l).
  assert (l = drop t (take m R)) as Hl.
  { apply seg_eq. intros j r Hj. by destruct (Hlk j r Hj). }
  assert (m ≤ nn) as Hmn.
  { destruct (decide (length l = 0)); [unfold m; lia|].
    destruct (lookup_lt_is_Some_2 l (length l - 1)) as [r Hr]; [lia|].
    destruct (Hlk _ _ Hr) as (_&?&_). unfold m. lia. }
  split; [|split; [done|]].
  - destruct (decide (an ≤ m)); [done|]. exfalso.
    destruct (lookup_lt_is_Some_2 R m) as [r Hr]; [lia|].
    destruct (pl_slots m r) as [He Hp]; [unfold m; lia|done|].
    destruct (Hwf _ _ Hr) as (Hs&_&Hpos&Hlen&_).
    assert (h_pos h + sum_list (r_len <$> l) = r_pos r) as Hpe.
    { rewrite pl_pos. fold t. rewrite Hpos, (posn_seg R t m), <-Hl; [done|unfold m; lia]. }
    apply (Hmax r). rewrite Hpe. split_and!; [done|done|done|done|].
    intros q Hq. apply (Hp q); [done|apply poss_cur].
  - intros j r Hj. destruct (Hlk _ _ Hj) as (Hr&_). by destruct (Hwf _ _ Hr) as (_&?&_).
Qed.

Section alarm.
Context (ls : list label) (s s' : st) (i : bool) (h : hdr).
Hypotheses (Hinit : init s) (Hsteps : steps ls s s') (Hmode : md s' = MScan).
Hypothesis Hbest : isbest (λ j, cur (hdrs (dk s') j)) i h.
Lemma scan_hok : hok zero N d0 (dk s') (rs s') (lb s') h.
Proof.
  pose proof (steps_MI _ _ _ _ _ _ (init_MI _ _ _ _ Hinit) Hsteps) as [_ Hm]. rewrite Hmode in Hm.
  by eapply DI_cur.
Qed.
(** What something valid proves durable is found by the scan. *)
Theorem proved_is_found l : h_vd h = None → chain N (dk s') h l → proved h l ≤ h_tail h + length l.
Proof.
  intros Hvd Hch. pose proof scan_hok as Hk. unfold hok in Hk. rewrite Hvd in Hk. destruct Hk as (_&an&nn&Hp).
  pose proof (steps_MI _ _ _ _ _ _ (init_MI _ _ _ _ Hinit) Hsteps) as [Hwf _].
  destruct (chain_len _ _ _ _ _ _ _ Hwf Hp Hch) as (_&_&Hfl). apply proved_le.
  - destruct Hp. lia.
  - intros j r Hj. rewrite (Hfl j r Hj). apply lookup_lt_Some in Hj. lia.
Qed.
(** Behind the first invalid record lies no valid record of its epoch. *)
Theorem nothing_behind_a_gap l q r p : h_vd h = None → chain N (dk s') h l →
  cur (slots (dk s') q) = Some (r, p) → r_ep r = h_rep h → r_seq r ≤ h_tail h + length l.
Proof.
  intros Hvd Hch Hcur He. pose proof scan_hok as Hk. unfold hok in Hk. rewrite Hvd in Hk. destruct Hk as (_&an&nn&Hp).
  pose proof (steps_MI _ _ _ _ _ _ (init_MI _ _ _ _ Hinit) Hsteps) as [Hwf _].
  destruct (chain_len _ _ _ _ _ _ _ Hwf Hp Hch) as (Han&_&_). destruct Hp.
  destruct (pl_for q r p) as [? _]; [rewrite <-Hcur; apply poss_cur|done|]. lia.
Qed.
(** The log never holds a record of a later epoch than the newest header's. *)
Theorem no_later_epoch q r p : cur (slots (dk s') q) = Some (r, p) → r_ep r ≤ h_ep h.
Proof.
  intros Hcur. pose proof scan_hok as Hk. unfold hok in Hk.
  destruct (h_vd h); destruct Hk as (He&_).
  - assert (r_ep r ≤ h_ep h - 1); [|lia]. apply (He q r p). rewrite <-Hcur. apply poss_cur.
  - apply (He q r p). rewrite <-Hcur. apply poss_cur.
Qed.
(** Every record that an earlier recovery's verdict accepted is there. *)
Theorem judged_are_there k : h_vd h = Some k →
  ∃ l, h_tail h + length l = k ∧ valids N (dk s') (h_rep h) (h_pos h) (h_tail h) l.
Proof.
  intros Hvd. pose proof scan_hok as Hk. unfold hok in Hk. rewrite Hvd in Hk. destruct Hk as (_&_&[]).
  pose proof (steps_MI _ _ _ _ _ _ (init_MI _ _ _ _ Hinit) Hsteps) as [Hwf _].
  exists (drop (h_tail h) (take k (rs s'))). split; [rewrite drop_length, take_length; lia|].
  rewrite ve_pos. revert ve_slots ve_tail. generalize (h_tail h) as t. intros t Hs Ht.
  remember (k - t) as n eqn:En. revert t En Hs Ht. induction n as [|n IH]; intros t En Hs Ht.
  - by rewrite drop_ge by (rewrite take_length; lia).
  - destruct (lookup_lt_is_Some_2 (rs s') t) as [r Hr]; [lia|].
    assert (take k (rs s') !! t = Some r) as Hr' by (rewrite lookup_take by lia; done).
    rewrite (drop_S _ _ _ Hr'). destruct (Hwf _ _ Hr) as (?&_&Hpos&?&_).
    destruct (Hs t r) as [? Hp]; [lia|done|]. split.
    + split_and!; [done..|]. intros q Hq. rewrite <-Hpos. apply Hp; [done|apply poss_cur].
    + rewrite <-(posn_S _ _ _ Hr). apply IH; [lia| |lia]. intros j r' Hj. apply Hs. lia.
Qed.
End alarm.

(** ** (4) Once a verdict is durable, every opening keeps exactly its records, however often
    recovery is cut. *)
Definition settled (k e0 : nat) (h : hdr) : Prop :=
  e0 ≤ h_ep h ∧ (h_vd h = Some k ∨ h_vd h = None ∧ h_tail h = k ∧ e0 ≤ h_rep h).
Definition HD (d : disk) (P : hdr → Prop) : Prop :=
  ∀ x, (∀ j, poss (hdrs d j) (x j)) → ∃ i h, isbest x i h ∧ P h.
Definition DM (k e0 : nat) (s : st) : Prop :=
  slots_below (dk s) e0 ∧ HD (dk s) (settled k e0) ∧
  match md s with
  | MScan => True
  | MRepl i h l => isbest (λ j, cur (hdrs (dk s) j)) i h ∧ settled k e0 h ∧ h_tail h + length l = k
  | MFresh i h k' => k' = k
  | _ => False
  end.
Lemma HD_cur (d : disk) (P : hdr → Prop) i h : HD d P → isbest (λ j, cur (hdrs d j)) i h → P h.
Proof.
  intros HD Hb. destruct (HD (λ j, cur (hdrs d j))) as (i'&h'&Hb'&Hk); [intros; apply poss_cur|].
  by destruct (isbest_unique _ _ _ _ _ Hb Hb') as [-> ->].
Qed.
Lemma HD_clean (d : disk) (P : hdr → Prop) i h H G :
  isbest (λ j, cur (hdrs d j)) i h → P h → HD (Disk H G (hdrs (dclean d))) P.
Proof.
  intros Hb HP x Hx. exists i, h. split; [|done].
  assert (∀ j, x j = cur (hdrs d j)) as Hxj by (intros j; by apply poss_clean, Hx).
  destruct Hb as [Hb1 Hb2]. split; rewrite Hxj; [done|apply Hb2].
Qed.
Lemma HD_begin (d : disk) (P : hdr → Prop) i h hn H G :
  isbest (λ j, cur (hdrs d j)) i h → h_gen h < h_gen hn → P h → P hn →
  HD (Disk H G (wrh (negb i) hn (hdrs (dclean d)))) P.
Proof.
  intros [Hb1 Hb2] Hg Hh Hn x Hx. simpl in Hx.
  assert (x i = Some h) as Hxi.
  { pose proof (Hx i) as Hxi. rewrite wrh_other in Hxi. simpl in Hxi. apply poss_clean in Hxi. by rewrite Hxi, Hb1. }
  pose proof (Hx (negb i)) as Hxn. unfold wrh in Hxn. rewrite decide_True in Hxn by done.
  apply poss_begin in Hxn as [Hxn|[Hxn|Hxn]]; [| | |apply quiet_clean].
  - exists (negb i), hn. split; [|done]. split; [done|]. rewrite negb_involutive, Hxi. by intros h' [= <-].
  - apply elem_of_list_singleton in Hxn. exists i, h. split; [|done]. split; [done|]. by rewrite Hxn.
  - apply poss_clean in Hxn. exists i, h. split; [|done]. split; [done|]. rewrite Hxn. intros h' Hh'. by apply Hb2.
Qed.
Lemma slots_below_clean (d : disk) e H D : slots_below d e → slots_below (Disk H (slots (dclean d)) D) e.
Proof. intros Hs i r j Hx%poss_clean. apply (Hs i r j). rewrite Hx. apply poss_cur. Qed.
Lemma settled_empty (d : disk) k e0 h (l : list rec) :
  slots_below d e0 → settled k e0 h → h_vd h = None → chain N d h l → l = [] ∧ h_tail h = k.
Proof.
  intros Hs [He [?|(_&Ht&Hr)]] Hvd [Hv _]; [congruence|]. split; [|done].
  destruct l as [|r l]; [done|]. destruct Hv as [(_&Hep&_&Hl&Hc) _].
  specialize (Hc 0 Hl). assert (r_ep r < e0); [|lia]. eapply (Hs _ r 0). rewrite <-Hc. apply poss_cur.
Qed.
Lemma DM_step k e0 l s s' : DM k e0 s → step l s s' → (∀ k', l ≠ Open k') → DM k e0 s'.
Proof.
  intros (Hs&HH&Hm) Hst Hno. destruct Hst; simpl in *; try done.
  - destruct H as (Ph&Ps&Pd). assert (∀ i, cur (hdrs d' i) = cur (hdrs d i)) as Hc by (intros i; by destruct (Pd i) as (_&->&_)).
    split_and!.
    + intros i r j Hx. eapply Hs, poss_persist; eauto.
    + intros x Hx. apply HH. intros j. eapply poss_persist; eauto.
    + destruct m; simpl in *; try done. destruct Hm as ([??]&?&?). unfold isbest. rewrite !Hc. done.
  - destruct H as (_&Ss&Sd). split_and!; [|intros x Hx; apply HH; intros j; by apply Sd|done].
    intros i r j Hx. eapply Hs. by apply Ss.
  - pose proof (HD_cur _ _ _ _ HH H0) as Hset. destruct (settled_empty _ _ _ _ _ Hs Hset H1 H2) as [-> _].
    destruct H3 as [? _]. simpl in *. lia.
  - pose proof (HD_cur _ _ _ _ HH H0) as Hset. destruct (settled_empty _ _ _ _ _ Hs Hset H1 H2) as [_ Ht].
    split_and!; [by apply (slots_below_clean (Disk H G D))| |done].
    apply (HD_begin (Disk H G D) _ i h); [done|simpl; lia|done|]. destruct Hset as [? _]. split; [simpl; lia|].
    right. simpl. split_and!; [done|lia|lia].
  - pose proof (HD_cur _ _ _ _ HH H0) as Hset.
    assert (k0 = k) as -> by (destruct Hset as [_ [?|(?&_)]]; congruence).
    split_and!; try done; [by apply (slots_below_clean (Disk H G D))|]. by apply (HD_clean (Disk H G D) _ i h).
  - destruct Hm as (Hb&Hset&Hk). split_and!; [by apply slots_below_clean| |done].
    apply (HD_begin d _ i h); [done|simpl; lia|done|]. destruct Hset as [? _]. split; [simpl; lia|]. right. simpl. split_and!; [done|lia|lia].
  - by destruct (Hno k0).
Qed.
Theorem verdict_is_final ls1 s s1 i h l ls2 s2 k s3 :
  init s → steps ls1 s s1 → md s1 = MRepl i h l →
  steps ls2 s1 s2 → Forall (λ x, ∀ k', x ≠ Open k') ls2 → step (Open k) s2 s3 →
  k = h_tail h + length l.
Proof.
  intros Hi H1 Hm H2 Hno H3.
  pose proof (steps_MI _ _ _ _ _ _ (init_MI _ _ _ _ Hi) H1) as [_ Hinv]. rewrite Hm in Hinv.
  destruct Hinv as (_&Hh&Hlt&Hvd&Hok&_&_&Hdef). unfold hok in Hok. rewrite Hvd in Hok. destruct Hok as (He&Hpos&_).
  set (kk := h_tail h + length l) in *.
  assert (DM kk (h_ep h) s2) as (_&_&HDM).
  { assert (Hb : isbest (λ j, cur (hdrs (dk s1) j)) i h) by (by split).
    assert (settled kk (h_ep h) h) as Hset by (split; [lia|by left]).
    assert (DM kk (h_ep h) s1) as HDM.
    { split_and!.
      - intros j r q Hx%He. lia.
      - intros x Hx. exists i, h. split; [|done]. split; rewrite (Hdef _ _ (Hx _)); [done|apply Hlt].
      - rewrite Hm. by split_and!. }
    clear -HDM H2 Hno. induction H2 as [|x xs t1 t2 t3 Hs Hss IH]; [done|].
    apply Forall_cons in Hno as [Hx Hxs]. apply IH; [exact Hxs|]. by eapply DM_step. }
  inversion H3; subst; simpl in *. done.
Qed.
End decided.
