(** What the disk holds at every moment, whatever a cut leaves of it: the newest tail header
    leads recovery to a prefix of the records that contains the acknowledged ones, and replay
    of that prefix leads every byte of every block in use to its content. *)
From stdpp Require Import prelude functions list.
From Steadfast Require Import Disk Replay Journal.

Section inv.
Context {addr : Type} `{!EqDecision addr} {off byte : Type} (zero : byte).
Context (N : nat) (d0 : addr → option (off → byte)).
Notation rec := (@rec addr off byte).
Notation disk := (@disk addr off byte).
Notation st := (@st addr off byte).
Notation L := (L zero d0).
Implicit Types (R : list rec) (d : disk).

Definition good R t k (b : addr) (o : off) (v : byte) : Prop :=
  gd zero (d0 b) (es (take k R) b) (sg R t k b) o v.

(** ** Arithmetic of prefixes *)
Lemma take_snoc_lookup {A} (l : list A) k x : l !! k = Some x → take (S k) l = take k l ++ [x].
Proof. apply take_S_r. Qed.
Lemma L_S R k r b : R !! k = Some r → L R (S k) b = lstep zero (L R k b) (r_eff r b).
Proof.
  intros H. unfold Journal.L, es. rewrite (take_snoc_lookup _ _ _ H), fmap_app. csimpl.
  by rewrite lfold_snoc.
Qed.
Lemma sg_S R t k r b : R !! k = Some r → t ≤ k → sg R t (S k) b = sg R t k b ++ [r_eff r b].
Proof.
  intros H Ht. unfold sg, es. rewrite (take_snoc_lookup _ _ _ H).
  assert (k < length R) by by eapply lookup_lt_Some.
  rewrite drop_app_le by (rewrite take_length; lia). by rewrite fmap_app.
Qed.
Lemma es_S R k r b : R !! k = Some r → es (take (S k) R) b = es (take k R) b ++ [r_eff r b].
Proof. intros H. unfold es. rewrite (take_snoc_lookup _ _ _ H), fmap_app. done. Qed.
Lemma posn_S R k r : R !! k = Some r → posn R (S k) = posn R k + r_len r.
Proof.
  intros H. unfold posn. rewrite (take_snoc_lookup _ _ _ H), fmap_app. csimpl.
  generalize (r_len <$> take k R). intros l. induction l; simpl; lia.
Qed.
Lemma sum_app l1 l2 : sum_list (l1 ++ l2) = sum_list l1 + sum_list l2.
Proof. induction l1; simpl; lia. Qed.
Lemma posn_mono R j k : j ≤ k → posn R j ≤ posn R k.
Proof.
  intros H. unfold posn. replace (take j R) with (take j (take k R)) by (rewrite take_take; f_equal; lia).
  rewrite <-(take_drop j (take k R)) at 2. rewrite fmap_app, sum_app. lia.
Qed.
Lemma posn_seg R t k : t ≤ k → posn R k = posn R t + sum_list (r_len <$> drop t (take k R)).
Proof.
  intros H. unfold posn. rewrite <-sum_app, <-fmap_app.
  replace (take t R) with (take t (take k R)) by (rewrite take_take; f_equal; lia).
  by rewrite take_drop.
Qed.
Lemma sg_split R t u k b : t ≤ u → u ≤ k → sg R t k b = sg R t u b ++ sg R u k b.
Proof.
  intros H1 H2. unfold sg, es. rewrite <-fmap_app. f_equal.
  rewrite <-(take_drop (u - t) (drop t (take k R))). f_equal.
  - rewrite take_drop_commute. f_equal. rewrite take_take. f_equal. lia.
  - rewrite drop_drop. f_equal. lia.
Qed.
Lemma sg_nil R k b : sg R k k b = [].
Proof. unfold sg. rewrite drop_ge; [done|]. rewrite take_length. lia. Qed.
Lemma L_app R R' k b : k ≤ length R → L (R ++ R') k b = L R k b.
Proof. intros. unfold Journal.L. by rewrite take_app_le. Qed.
Lemma sg_app R R' t k b : k ≤ length R → sg (R ++ R') t k b = sg R t k b.
Proof. intros. unfold sg. by rewrite take_app_le. Qed.
Lemma posn_app R R' k : k ≤ length R → posn (R ++ R') k = posn R k.
Proof. intros. unfold posn. by rewrite take_app_le. Qed.
Lemma good_app R R' t k b o v : k ≤ length R → good (R ++ R') t k b o v ↔ good R t k b o v.
Proof. intros. unfold good. by rewrite take_app_le, sg_app. Qed.
Lemma L_take R j k b : j ≤ k → L (take k R) j b = L R j b.
Proof. intros. unfold Journal.L. rewrite take_take. do 3 f_equal. lia. Qed.
Lemma posn_take R j k : j ≤ k → posn (take k R) j = posn R j.
Proof. intros. unfold posn. rewrite take_take. do 3 f_equal. lia. Qed.
Lemma good_S R t k r b o v :
  R !! k = Some r → t ≤ k → ¬ covers (r_eff r b) → good R t k b o v → good R t (S k) b o v.
Proof. intros Hr Ht Hc. unfold good. rewrite (sg_S _ _ _ _ _ Hr Ht), (es_S _ _ _ _ Hr). by apply gd_snoc. Qed.
Lemma good_cover R t k r b o v chk c fr :
  R !! k = Some r → t ≤ k → r_eff r b = ECover chk c fr → tch (sg R t k b) = false → v = c o →
  good R t (S k) b o v.
Proof.
  intros Hr Ht Hc H1 H2. unfold good. rewrite (sg_S _ _ _ _ _ Hr Ht), (es_S _ _ _ _ Hr), Hc. by apply gd_cover.
Qed.
Lemma good_empty R k b o v : (∀ c, L R k b = Some c → v = c o) → good R k k b o v.
Proof. intros H c Hc. rewrite sg_nil. simpl. by apply H. Qed.
Lemma good_nil_inv R k b o v c : good R k k b o v → L R k b = Some c → v = c o.
Proof. intros H Hc. specialize (H _ Hc). by rewrite sg_nil in H. Qed.
Lemma tch_suffix R t u k b : t ≤ u → u ≤ k → tch (sg R t k b) = false → tch (sg R u k b) = false.
Proof. intros ??. rewrite (sg_split R t u k) by done. apply tch_app_r. Qed.

Lemma mod_inj s p q : s ≤ p < s + N → s ≤ q < s + N → p `mod` N = q `mod` N → p = q.
Proof.
  intros Hp Hq H. assert (N ≠ 0) by lia.
  rewrite (Nat.div_mod p N), (Nat.div_mod q N) by done. rewrite H.
  f_equal. f_equal. pose proof (Nat.div_mod p N H0). pose proof (Nat.div_mod q N H0).
  pose proof (Nat.mod_upper_bound q N H0). nia.
Qed.
Lemma part_some pos len i j : part N pos len i = Some j → j < len ∧ (pos + j) `mod` N = i.
Proof.
  unfold part. destruct (list_find _ _) as [[i' j']|] eqn:E; [|done]. simpl. intros [= ->].
  apply list_find_Some in E as (H1&H2&_). apply lookup_seq in H1 as [-> ?]. simpl in *. done.
Qed.
Lemma part_none pos len i j : part N pos len i = None → j < len → (pos + j) `mod` N ≠ i.
Proof.
  unfold part. destruct (list_find _ _) as [?|] eqn:E; [done|]. intros _ Hj.
  apply list_find_None in E. rewrite Forall_forall in E. apply E. apply elem_of_seq. lia.
Qed.
Lemma part_at pos len j : j < len → len ≤ N → part N pos len ((pos + j) `mod` N) = Some j.
Proof.
  intros Hj Hl. destruct (part N pos len _) as [j'|] eqn:E; [|by eapply part_none in E].
  apply part_some in E as [Hj' E]. apply (mod_inj pos) in E; [|lia|lia]. f_equal. lia.
Qed.

(** ** The disk *)
Definition wfR R : Prop := ∀ j r, R !! j = Some r →
  r_seq r = j ∧ r_fl r = j ∧ r_pos r = posn R j ∧ 0 < r_len r ∧ r_len r ≤ N.
Definition slots_ok d R (e t k : nat) : Prop := ∀ j r, t ≤ j < k → R !! j = Some r →
  r_ep r = e ∧ ∀ i x, i < r_len r → poss (slots d ((r_pos r + i) `mod` N)) x → x = Some (r, i).
Definition foreign d R (e nn : nat) : Prop := ∀ i r j, poss (slots d i) (Some (r, j)) →
  r_ep r = e → r_seq r < nn ∧ R !! r_seq r = Some r.
Definition eps d (e : nat) : Prop := ∀ i r j, poss (slots d i) (Some (r, j)) → r_ep r ≤ e.

(** A tail header without verdict: [an] records are surely there, one more perhaps. *)
Record plain d R (a : nat) (h : hdr) (an nn : nat) : Prop := {
  pl_a : a ≤ an; pl_n : nn ≤ length R; pl_an : an ≤ nn ≤ S an; pl_tail : h_tail h ≤ an;
  pl_fl : h_fl h = h_tail h; pl_pos : h_pos h = posn R (h_tail h);
  pl_slots : slots_ok d R (h_rep h) (h_tail h) an;
  pl_for : foreign d R (h_rep h) nn;
  pl_good : ∀ b o v, poss (home d b o) v → good R (h_tail h) an b o v;
  pl_goodn : nn = S an → ∀ r b, R !! an = Some r →
    (∀ o v, poss (home d b o) v → good R (h_tail h) nn b o v) ∨
    (∃ c fr, r_eff r b = ECover true c fr ∧ tch (sg R (h_tail h) an b) = false);
  pl_unp : h_tail h < an → ∀ r b c fr, R !! (an - 1) = Some r → r_eff r b = ECover true c fr →
    ∀ o v, poss (home d b o) v → v = c o }.
(** A verdict: exactly the records before [k]. *)
Record verd d R (a : nat) (h : hdr) (k : nat) : Prop := {
  ve_a : a ≤ k; ve_n : k ≤ length R; ve_tail : h_tail h ≤ k; ve_pos : h_pos h = posn R (h_tail h);
  ve_slots : slots_ok d R (h_rep h) (h_tail h) k;
  ve_good : ∀ b o v, poss (home d b o) v → good R (h_tail h) k b o v }.
Definition hok d R (a : nat) (h : hdr) : Prop :=
  match h_vd h with
  | None => eps d (h_ep h) ∧ ∃ an nn, plain d R a h an nn
  | Some k => eps d (h_ep h - 1) ∧ 0 < h_ep h ∧ verd d R a h k
  end.
Definition DI d R (a : nat) : Prop :=
  ∀ x, (∀ i, poss (hdrs d i) (x i)) → ∃ i h, isbest x i h ∧ hok d R a h.

(** Less is possible: every statement above stays. *)
Definition dsub (d' d : disk) : Prop :=
  (∀ b o v, poss (home d' b o) v → poss (home d b o) v) ∧ (∀ i x, poss (slots d' i) x → poss (slots d i) x).
Lemma slots_ok_sub d d' R e t k : dsub d' d → slots_ok d R e t k → slots_ok d' R e t k.
Proof. intros [_ Hs] H j r Hj Hr. destruct (H j r Hj Hr) as [? Hx]. split; [done|]. intros. eapply Hx; eauto. Qed.
Lemma foreign_sub d d' R e n : dsub d' d → foreign d R e n → foreign d' R e n.
Proof. intros [_ Hs] H i r j Hp. eapply H; eauto. Qed.
Lemma eps_sub d d' e : dsub d' d → eps d e → eps d' e.
Proof. intros [_ Hs] H i r j Hp. eapply H; eauto. Qed.
Lemma hok_sub d d' R a h : dsub d' d → hok d R a h → hok d' R a h.
Proof.
  intros Hd. unfold hok. destruct (h_vd h) as [k|].
  - intros (?&?&[]). split_and!; [by eapply eps_sub|done|]. constructor; try done.
    + by eapply slots_ok_sub.
    + intros. eapply ve_good0, Hd. done.
  - intros (?&an&nn&[]). split; [by eapply eps_sub|]. exists an, nn. constructor; try done.
    + by eapply slots_ok_sub.
    + by eapply foreign_sub.
    + intros. eapply pl_good0, Hd. done.
    + intros Hn r b Hr. destruct (pl_goodn0 Hn r b Hr) as [Hx|Hx]; [left|by right]. intros. by apply Hx, Hd.
    + intros Ht r b c fr Hr Hc o v Hp. eapply pl_unp0; eauto. by apply Hd.
Qed.
Lemma DI_sub d d' R a : dsub d' d → (∀ i x, poss (hdrs d' i) x → poss (hdrs d i) x) → DI d R a → DI d' R a.
Proof.
  intros Hd Hh HD x Hx. destruct (HD x) as (i&h&?&?); [eauto|]. exists i, h. split; [done|]. by eapply hok_sub.
Qed.
Lemma isbest_unique x i i' h h' : isbest x i h → isbest x i' h' → i = i' ∧ h = h'.
Proof.
  intros [H1 H2] [H3 H4]. destruct (decide (i = i')) as [->|Hn]; [split; congruence|].
  assert (i' = negb i) as -> by (destruct i, i'; done). apply H2 in H3. rewrite negb_involutive in H4.
  apply H4 in H1. lia.
Qed.
Lemma dsub_clean d : dsub (dclean d) d.
Proof. split; [intros b o v ->%poss_clean|intros i x ->%poss_clean]; apply poss_cur. Qed.
Lemma dsub_trans d1 d2 d3 : dsub d1 d2 → dsub d2 d3 → dsub d1 d3.
Proof. intros [? ?] [? ?]; split; eauto. Qed.
Lemma DI_cur d R a i h : DI d R a → isbest (λ j, cur (hdrs d j)) i h → hok d R a h.
Proof.
  intros HD Hb. destruct (HD (λ j, cur (hdrs d j))) as (i'&h'&Hb'&Hk); [intros; apply poss_cur|].
  by destruct (isbest_unique _ _ _ _ _ Hb Hb') as [-> ->].
Qed.
(** A header is being written beside the one that counts. *)
Lemma DI_begin d R a i h hn :
  isbest (λ j, cur (hdrs d j)) i h → h_gen h < h_gen hn →
  (∀ j, hdrs d j = clean (hdrs d j)) → hok d R a h → hok d R a hn →
  DI (Disk (home d) (slots d) (wrh (negb i) hn (hdrs d))) R a.
Proof.
  intros [Hb1 Hb2] Hg Hc Hh Hn x Hx.
  assert (Hd : dsub (Disk (home d) (slots d) (wrh (negb i) hn (hdrs d))) d) by (split; done).
  assert (x i = Some h) as Hxi.
  { specialize (Hx i). simpl in Hx. unfold wrh in Hx. rewrite decide_False in Hx by (by destruct i).
    rewrite Hc in Hx. apply poss_clean in Hx. by rewrite Hx, Hb1. }
  pose proof (Hx (negb i)) as Hxn. simpl in Hxn. unfold wrh in Hxn. rewrite decide_True in Hxn by done.
  apply poss_begin in Hxn as [Hxn|[Hxn|Hxn]]; [| | |rewrite Hc; apply quiet_clean].
  - exists (negb i), hn. split; [|by eapply hok_sub]. split; [done|]. rewrite negb_involutive, Hxi.
    intros h' [= <-]. done.
  - apply elem_of_list_singleton in Hxn. exists i, h. split; [|by eapply hok_sub]. split; [done|].
    rewrite Hxn. done.
  - rewrite Hc in Hxn. apply poss_clean in Hxn. exists i, h. split; [|by eapply hok_sub]. split; [done|].
    rewrite Hxn. intros h' Hh'. by apply Hb2.
Qed.
Lemma DI_definite d R a i h :
  isbest (λ j, cur (hdrs d j)) i h → (∀ j, hdrs d j = clean (hdrs d j)) → hok d R a h → DI d R a.
Proof.
  intros Hb Hc Hh x Hx. exists i, h. split; [|done].
  assert (∀ j, x j = cur (hdrs d j)) as Hxj.
  { intros j. specialize (Hx j). rewrite Hc in Hx. by apply poss_clean in Hx. }
  destruct Hb as [Hb1 Hb2]. split; rewrite Hxj; [done|apply Hb2].
Qed.

(** ** The scan finds what it should *)
Lemma valids_lookup d R e n : foreign d R e n → ∀ l pos seq,
  valids N d e pos seq l → ∀ j r, l !! j = Some r → R !! (seq + j) = Some r ∧ seq + j < n ∧ r_ep r = e.
Proof.
  intros Hf. induction l as [|r0 l IH]; intros pos seq Hv j r Hj; [done|].
  destruct Hv as [(Hs&He&Hp&Hl&Hc) Hv]. destruct j as [|j]; simpl in Hj.
  - injection Hj as ->. specialize (Hc 0 Hl). rewrite Nat.add_0_r in *.
    destruct (Hf (pos `mod` N) r 0) as [? ?]; [rewrite <-Hc; apply poss_cur|done|]. by subst seq.
  - replace (seq + S j) with (S seq + j) by lia. by eapply IH.
Qed.
Lemma valids_parts d e l : ∀ pos seq, valids N d e pos seq l → ∀ j r, l !! j = Some r →
  r_ep r = e ∧ ∀ i, i < r_len r → cur (slots d ((r_pos r + i) `mod` N)) = Some (r, i).
Proof.
  induction l as [|r0 l IH]; intros pos seq Hv j r Hj; [done|].
  destruct Hv as [(Hs&He&Hp&Hl&Hc) Hv]. destruct j as [|j]; simpl in Hj.
  - injection Hj as ->. by rewrite Hp.
  - by eapply IH.
Qed.
Lemma seg_eq R l t : (∀ j r, l !! j = Some r → R !! (t + j) = Some r) → l = drop t (take (t + length l) R).
Proof.
  intros H. apply list_eq. intros j. rewrite lookup_drop.
  destruct (l !! j) as [r|] eqn:E.
  - rewrite lookup_take by (apply lookup_lt_Some in E; lia). by rewrite (H _ _ E).
  - symmetry. apply lookup_take_ge. apply lookup_ge_None in E. lia.
Qed.
Lemma proved_le (h : hdr) (l : list rec) n : h_fl h ≤ n → (∀ j r, l !! j = Some r → r_fl r ≤ n) → proved h l ≤ n.
Proof.
  intros H0. unfold proved. induction l as [|r l IH]; intros H; csimpl; [done|].
  pose proof (H 0 r eq_refl). assert (foldr max (h_fl h) (r_fl <$> l) ≤ n); [|lia].
  apply IH. intros j r' Hj. by apply (H (S j)).
Qed.
Lemma proved_ge (h : hdr) (l : list rec) j r : l !! j = Some r → r_fl r ≤ proved h l.
Proof.
  unfold proved. revert j. induction l as [|r0 l IH]; intros j Hj; [done|]. csimpl.
  destruct j; simpl in Hj; [injection Hj as ->; lia|]. apply IH in Hj. lia.
Qed.

Lemma scan_finds d R a h an nn l i :
  wfR R → plain d R a h an nn → chain N d h l → cutat d h l i →
  let k := h_tail h + i in
  a ≤ k ∧ k ≤ length R ∧ l = drop (h_tail h) (take (h_tail h + length l) R) ∧ i ≤ length l ∧
  (∀ j r, h_tail h ≤ j < k → R !! j = Some r → r_ep r = h_rep h ∧
     ∀ q, q < r_len r → cur (slots d ((r_pos r + q) `mod` N)) = Some (r, q)) ∧
  (∀ b o, good R (h_tail h) k b o (cur (home d b o))).
Proof.
  intros Hwf [] [Hv Hmax] (Hi&Hmatch&Hend). simpl.
  set (t := h_tail h) in *. set (m := t + length l).
  pose proof (valids_lookup _ _ _ _ pl_for0 _ _ _ Hv) as Hlk. fold t in Hlk.
  assert (l = drop t (take m R)) as Hl.
  { apply seg_eq. intros j r Hj. by destruct (Hlk j r Hj). }
  assert (m ≤ nn) as Hmn.
  { destruct (decide (length l = 0)); [unfold m; lia|].
    destruct (lookup_lt_is_Some_2 l (length l - 1)) as [r Hr]; [lia|].
    destruct (Hlk _ _ Hr) as (_&?&_). unfold m. lia. }
  assert (an ≤ m) as Ham.
  { destruct (decide (an ≤ m)); [done|]. exfalso.
    destruct (lookup_lt_is_Some_2 R m) as [r Hr]; [lia|].
    destruct (pl_slots0 m r) as [He Hp]; [unfold m; lia|done|].
    destruct (Hwf _ _ Hr) as (Hs&_&Hpos&Hlen&_).
    assert (h_pos h + sum_list (r_len <$> l) = r_pos r) as Hpe.
    { rewrite pl_pos0. fold t. rewrite Hpos, (posn_seg R t m), <-Hl; [done|unfold m; lia]. }
    apply (Hmax r). rewrite Hpe. split_and!; [done|done|done|done|].
    intros q Hq. apply (Hp q); [done|apply poss_cur]. }
  assert (∀ j r, l !! j = Some r → r_seq r = t + j ∧ r_fl r = t + j) as Hseq.
  { intros j r Hj. destruct (Hlk _ _ Hj) as (Hr&_). by destruct (Hwf _ _ Hr) as (?&?&_). }
  assert (t + i = an ∨ (t + i = nn ∧ nn = S an ∧ i = length l)) as Hk.
  { destruct Hend as [->|(r&Hr&Hpr&Hnm)].
    - fold m. destruct (decide (m = an)); [by left|right; lia].
    - destruct (decide (t + i = an)) as [|Hne]; [by left|]. exfalso.
      destruct (Hseq _ _ Hr) as [Hs _]. destruct (Hlk _ _ Hr) as (HR&_).
      assert (i < length l) by by eapply lookup_lt_Some.
      destruct (decide (S i < length l)) as [Hlt|].
      { destruct (lookup_lt_is_Some_2 l (S i)) as [r' Hr']; [done|].
        pose proof (proved_ge h _ _ _ Hr'). destruct (Hseq _ _ Hr'). lia. }
      assert (t + i < an) by (unfold m in *; lia).
      apply Hnm. intros b c fr Hc o. assert (t + i = an - 1) as E by (unfold m in *; lia).
      eapply (pl_unp0 ltac:(lia) r b c fr); [by rewrite <-E|done|apply poss_cur]. }
  assert (∀ j r, t ≤ j < t + i → R !! j = Some r → r_ep r = h_rep h ∧
     ∀ q, q < r_len r → cur (slots d ((r_pos r + q) `mod` N)) = Some (r, q)) as Hsl.
  { intros j r Hj Hr. eapply (valids_parts _ _ _ _ _ Hv (j - t)). rewrite Hl, lookup_drop.
    rewrite lookup_take by (unfold m; lia). rewrite <-Hr. f_equal. lia. }
  split_and!; [lia|lia|done|done|done|]. intros b o.
  destruct Hk as [E|(E&Hn&Ei)]; rewrite E; [apply pl_good0, poss_cur|].
  destruct (lookup_lt_is_Some_2 R an) as [r Hr]; [lia|].
  destruct (pl_goodn0 Hn r b Hr) as [H|(c&fr&Hc&Ht)]; [apply H, poss_cur|].
  rewrite Hn. eapply good_cover; [done|done|done|done|].
  assert (l !! (an - t) = Some r) as Hlr.
  { rewrite Hl, lookup_drop, lookup_take by (unfold m; lia). rewrite <-Hr. f_equal. lia. }
  eapply (Hmatch (an - t) r); [done|apply lookup_lt_Some in Hlr; lia| |done].
  destruct (Hseq _ _ Hlr) as [-> _]. apply proved_le; [lia|].
  intros j r' Hj. destruct (Hseq _ _ Hj) as [_ ->]. apply lookup_lt_Some in Hj. unfold m in *. lia.
Qed.
End inv.
