(** The log's flash: what each command keeps, what a cut leaves, and what recovery finds in it. *)
From stdpp Require Import prelude functions list relations.
From Steadfast Require Import Ftl FtlLog.

Section recover.
Context {sector content page block : Type} `{!EqDecision sector, !EqDecision page, !EqDecision block}.
Context (blk : page → block) (zero : content).
Notation says := (sector → option (option content)).
Notation pairs := (sector → option (option page)).
Notation entry := (page * says * bool)%type.
Notation flash := (@flash sector content page).
Notation run := (@run sector page).
Notation cell := (@cell sector content).
Notation mem := (@mem sector content page).
Implicit Types (lg : list entry) (f c : flash).

(** ** Maps *)
Lemma mapat_S lg n e : lg !! n = Some e → mapat lg (S n) = chg e (mapat lg n).
Proof. intros He. unfold mapat. rewrite (take_S_r _ _ _ He), foldl_app. done. Qed.
Lemma mapat_app lg l n : n ≤ length lg → mapat (lg ++ l) n = mapat lg n.
Proof. intros Hn. unfold mapat. by rewrite take_app_le. Qed.
Lemma mapat_take lg n k : k ≤ n → mapat (take n lg) k = mapat lg k.
Proof. intros Hk. unfold mapat. by rewrite take_take, Nat.min_l. Qed.
Lemma mapat_all lg e : mapat (lg ++ [e]) (S (length lg)) = chg e (mapat lg (length lg)).
Proof. rewrite (mapat_S _ _ e); [by rewrite mapat_app|]. by apply list_lookup_middle. Qed.
Lemma cover_snoc (l : list entry) e : cover (l ++ [e]) = cov e (cover l).
Proof. unfold cover. by rewrite foldl_app. Qed.
Lemma run_cov lg u n q e : u ≤ n → lg !! n = Some e → run_ok lg u n q → run_ok lg u (S n) (cov e q).
Proof.
  intros Hu He Hr a. specialize (Hr a). unfold cov. rewrite (mapat_S _ _ _ He). unfold chg.
  destruct (e.1.2 a) as [[v|]|] eqn:E; [done..|]. destruct (q a) as [x|]; [done|].
  intros k Hk. destruct (decide (k = S n)) as [->|].
  - rewrite (mapat_S _ _ _ He). unfold chg. by rewrite E.
  - apply Hr. lia.
Qed.
Lemma run_none lg u : run_ok lg u u none.
Proof. intros a k Hk. by replace k with u by lia. Qed.
Lemma cover_ok lg u n : u ≤ n → n ≤ length lg → run_ok lg u n (cover (take (n - u) (drop u lg))).
Proof.
  intros Hu. induction Hu as [|n Hu IH]; intros Hn; [rewrite Nat.sub_diag; simpl; apply run_none|].
  destruct (lookup_lt_is_Some_2 lg n) as [e He]; [lia|].
  replace (S n - u) with (S (n - u)) by lia. rewrite (take_S_r _ _ e) by (rewrite lookup_drop; by replace (u + (n - u)) with n by lia).
  rewrite cover_snoc. apply run_cov; [lia|done|]. apply IH. lia.
Qed.
Lemma run_ovp lg u n q m a : u ≤ n → run_ok lg u n q → m a = mapat lg u a → ovp q m a = mapat lg n a.
Proof. intros Hu Hr Hm. specialize (Hr a). unfold ovp. destruct (q a); [done|]. rewrite Hm. apply Hr. lia. Qed.
Lemma run_ext lg lg' u n q : (∀ k, k ≤ n → mapat lg' k = mapat lg k) → run_ok lg u n q → run_ok lg' u n q.
Proof.
  intros He Hr a. specialize (Hr a). rewrite (He n) by lia. destruct (q a); [done|].
  intros k Hk. rewrite He by lia. by apply Hr.
Qed.

(** ** Runs *)
Lemma upb_app (l l' : list run) k : k ≤ length l → upb (l ++ l') k = upb l k.
Proof. intros Hk. destruct k as [|k]; [done|]. simpl. by rewrite lookup_app_l. Qed.
Lemma upb_take (l : list run) n k : k ≤ n → upb (take n l) k = upb l k.
Proof. intros Hk. destruct k as [|k]; [done|]. simpl. by rewrite lookup_take by lia. Qed.
Lemma upb_last (l : list run) d : upb (l ++ [d]) (length (l ++ [d])) = upto d.
Proof. rewrite app_length, Nat.add_1_r. simpl. by rewrite list_lookup_middle. Qed.
Section mono.
Context lg i n f (HF : fok lg i n f).
Lemma upb_mono j k : j ≤ k → k ≤ length (dl f) → upb (dl f) j ≤ upb (dl f) k.
Proof.
  induction 1 as [|k Hjk IH]; intros Hk; [done|]. destruct (lookup_lt_is_Some_2 (dl f) k) as [d Hd]; [lia|].
  simpl. rewrite Hd. destruct (f_runs _ _ _ _ HF _ _ Hd) as [? _]. etrans; [apply IH; lia|lia].
Qed.
Lemma upb_le k : k ≤ length (dl f) → upb (dl f) k ≤ n.
Proof.
  intros Hk. destruct k as [|k]; simpl; [lia|]. destruct (lookup_lt_is_Some_2 (dl f) k) as [d Hd]; [lia|].
  rewrite Hd. apply (f_runs _ _ _ _ HF _ _ Hd).
Qed.
End mono.

(** ** What commands keep *)
Definition needed lg n f (p : page) : Prop :=
  (∃ j w b, upb (dl f) (dd f) ≤ j < n ∧ lg !! j = Some (p, w, b)) ∨ (∃ a, mapat lg n a = Some p).
Lemma fok_pages lg i n f f' : fok lg i n f →
  rt f' = rt f → rq f' = rq f → dl f' = dl f → dd f' = dd f →
  (∀ p i' j w b, poss f' p (Data i' j w b) → poss f p (Data i' j w b)) →
  (∀ p, needed lg n f p → pg f' p = pg f p ∧ (still f p → still f' p)) → fok lg i n f'.
Proof.
  intros HF Hr Hq Hl Hd Hp Hn. destruct HF as [Hdd Hruns Hrt Hrq Hinc Htail Honly Hlen Hcommit Hnamed].
  constructor; unfold root_ok in *; rewrite ?Hr, ?Hq, ?Hl, ?Hd; try done.
  - intros j p w b Hj He. destruct (Htail j p w b Hj He) as [Hpg Hst].
    destruct (Hn p) as [-> ?]; [left; eauto|]. auto.
  - intros p i' j w b Hx. rewrite <-?Hl, <-?Hd. rewrite Hl, Hd. by apply Honly, Hp.
  - intros a p Ha. destruct (Hnamed a p Ha) as [(i'&j&w&b&v&Hpg&Hw) Hst].
    destruct (Hn p) as [Hpg' ?]; [right; eauto|]. split; [|auto]. exists i', j, w, b, v. by rewrite Hpg'.
Qed.
Lemma holds_data f p a : holds f p a → pg f p ≠ Blank.
Proof. by intros (?&?&?&?&?&->&_). Qed.
Lemma needed_data lg i n f p : fok lg i n f → needed lg n f p → pg f p ≠ Blank.
Proof.
  intros HF [(j&w&b&Hj&He)|[a Ha]].
  - destruct (f_tail _ _ _ _ HF _ _ _ _ Hj He) as [-> _]. done.
  - destruct (f_named _ _ _ _ HF _ _ Ha) as [?%holds_data _]. done.
Qed.
Lemma poss_program p x f q y : poss (program p x f) q y → (q = p ∧ y = x) ∨ poss f q y ∨ y = Torn.
Proof.
  unfold poss, program. simpl. intros [Hy|[[-> [->| ->]]|Hy]]; auto.
  destruct (decide (q = p)) as [->|]; [rewrite fn_lookup_insert in Hy; auto|rewrite fn_lookup_insert_ne in Hy by done; auto].
Qed.
Lemma fok_program lg i n f p w b : fok lg i n f → fresh f p → upb (dl f) (dd f) ≤ length lg →
  fok (lg ++ [(p, w, b)]) i n (program p (Data i (length lg) w b) f).
Proof.
  intros HF [Hb Hs] Hu. pose proof HF as [Hdd Hruns Hrt Hrq Hinc Htail Honly Hlen Hcommit Hnamed].
  assert (∀ k, k ≤ n → mapat (lg ++ [(p, w, b)]) k = mapat lg k) as Hm by (intros; apply mapat_app; lia).
  assert (∀ r, root_ok lg f r → root_ok (lg ++ [(p, w, b)]) (program p (Data i (length lg) w b) f) r) as Hroot.
  { intros r [? Hr]. split; [done|]. intros a. destruct (Hr a) as (k&Hk&->). exists k. split; [done|].
    rewrite Hm; [done|]. etrans; [apply Hk|]. eapply (upb_le _ _ _ _ HF). apply Hdd. }
  constructor; simpl; try done.
  - intros j d Hd. destruct (Hruns j d Hd) as [? Hr]. split; [done|]. eapply run_ext; [|done]. intros. apply Hm. lia.
  - by apply Hroot.
  - intros r Hr. by apply Hroot, Hrq.
  - intros j q w' b' Hj He. rewrite lookup_app_l in He by lia. destruct (Htail _ _ _ _ Hj He) as [Hpg Hst].
    destruct (decide (q = p)) as [->|]; [congruence|]. rewrite fn_lookup_insert_ne by done. split; [done|].
    intros y [[-> _]|Hy]; [done|]. by eapply Hst.
  - intros q i' j w' b' [[-> [= -> -> -> ->]]|[Hq|?]]%poss_program; [|clear Hs|done].
    + split; [done|]. intros _ _. by apply list_lookup_middle.
    + destruct (Honly _ _ _ _ _ Hq) as [? Hj]. split; [done|]. intros -> Hu'. specialize (Hj eq_refl Hu').
      by apply lookup_app_l_Some.
  - rewrite app_length. lia.
  - destruct Hcommit as [|(q&w'&Hq)]; [by left|]. right. exists q, w'. by apply lookup_app_l_Some.
  - intros a q. rewrite Hm by done. intros Ha. destruct (Hnamed a q Ha) as [(i'&j&w'&b'&v&Hpg&Hw) Hst].
    assert (q ≠ p) as Hne by congruence. split.
    + exists i', j, w', b', v. simpl. by rewrite fn_lookup_insert_ne.
    + intros y [[-> _]|Hy]; [done|]. by eapply Hst.
Qed.
Lemma poss_erase b f q y : poss (erase blk b f) q y → poss f q y ∨ y = Blank ∨ y = Torn.
Proof.
  unfold poss, erase. simpl. intros [Hy|[[_ [->| ->]]|Hy]]; auto. destruct (decide (blk q = b)); subst; auto.
Qed.
Lemma fok_erase lg i n f b : fok lg i n f → (∀ p, needed lg n f p → blk p ≠ b) → fok lg i n (erase blk b f).
Proof.
  intros HF Hb. apply (fok_pages lg i n f); try done.
  - intros p i' j w b' [?|[?|?]]%poss_erase; done.
  - intros p Hp%Hb. simpl. rewrite decide_False by done. split; [done|].
    intros Hs y [[? _]|Hy]; [done|]. by eapply Hs.
Qed.
Lemma root_append lg f d r : dd f ≤ length (dl f) → root_ok lg f r → root_ok lg (append d f) r.
Proof.
  intros Hd [? Hr]. split; [done|]. intros a. destruct (Hr a) as (k&?&?). exists k. simpl.
  rewrite !upb_app by lia. done.
Qed.
(** A run says what is committed; it may begin an incarnation. *)
Lemma fok_append lg i n f q : fok lg i n f → run_ok lg (upb (dl f) (length (dl f))) n q →
  fok lg i n (append (Run n i q) f).
Proof.
  intros HF Hr. pose proof HF as [Hdd Hruns Hrt Hrq Hinc Htail Honly Hlen Hcommit Hnamed].
  assert (upb (dl f ++ [Run n i q]) (dd f) = upb (dl f) (dd f)) as Hu by (apply upb_app; lia).
  constructor; simpl; rewrite ?Hu; try done.
  - rewrite app_length. lia.
  - intros j d Hj. apply lookup_app_Some in Hj as [Hj|[Hl Hj]].
    + rewrite upb_app by (apply lookup_lt_Some in Hj; lia). by apply Hruns.
    + apply list_lookup_singleton_Some in Hj as [Hj <-]. replace j with (length (dl f)) by lia. simpl.
      rewrite upb_app by done. split; [|done]. split; [|done]. by eapply (upb_le _ _ _ _ HF).
  - apply root_append; [lia|done].
  - intros r Hq. apply root_append; [lia|by apply Hrq].
  - intros j d Hj Hl. apply lookup_app_Some in Hl as [Hl|[_ Hl]]; [by eapply Hinc|].
    by apply list_lookup_singleton_Some in Hl as [_ <-].
Qed.
Lemma fok_reroot lg i n f r : fok lg i n f → root_ok lg f r → fok lg i n (reroot r f).
Proof. intros [] Hr. constructor; simpl; try done. by intros r' [= <-]. Qed.

(** ** Cuts *)
Lemma cut_poss f c p y : cut f c → poss c p y → poss f p y.
Proof. intros (Hp&Hs&_) [->|Hy]; [apply Hp|by eapply Hs in Hy]. Qed.
Lemma cut_definite f c : cut f c → dd f ≤ length (dl f) → definite c.
Proof. intros (_&Hs&_&Hq&k&Hk&Hl&Hd) Hdd. split_and!; try done. rewrite Hl, Hd, take_length. lia. Qed.
Lemma cut_same f c p : cut f c → still f p → pg c p = pg f p.
Proof. intros (Hp&_) Hs. destruct (Hp p) as [|Hy]; [done|by eapply Hs in Hy]. Qed.
Lemma fok_cut lg i n f c : fok lg i n f → cut f c → fok lg i n c.
Proof.
  intros HF Hc. pose proof HF as [Hdd Hruns Hrt Hrq Hinc Htail Honly Hlen Hcommit Hnamed].
  pose proof Hc as (Hp&Hs&Hr&Hq&k&Hk&Hl&Hd).
  assert (∀ j, j ≤ k → upb (dl c) j = upb (dl f) j) as Hu by (intros; rewrite Hl; by apply upb_take).
  assert (upb (dl f) (dd f) ≤ upb (dl c) (dd c)) as Hm.
  { rewrite Hd, Hu by done. eapply (upb_mono _ _ _ _ HF); lia. }
  assert (∀ r, root_ok lg f r → root_ok lg c r) as Hroot.
  { intros r [? Hr']. split; [lia|]. intros a. destruct (Hr' a) as (q&?&?). exists q. split; [|done].
    rewrite Hu by lia. lia. }
  constructor.
  - rewrite Hl, Hd, take_length. lia.
  - intros j d Hj. assert (j < k) by (apply lookup_lt_Some in Hj; rewrite Hl, take_length in Hj; lia).
    rewrite Hu by lia. rewrite Hl, lookup_take in Hj by lia. by apply Hruns.
  - destruct Hr as [->|Hr]; apply Hroot; [done|by apply Hrq].
  - rewrite Hq. done.
  - intros j d Hj Hl'. assert (j < k) by (apply lookup_lt_Some in Hl'; rewrite Hl, take_length in Hl'; lia).
    rewrite Hl, lookup_take in Hl' by lia. apply (Hinc j d); [lia|done].
  - intros j p w b Hj He. destruct (Htail j p w b) as [Hpg Hst]; [lia|done|]. by rewrite (cut_same f).
  - intros p i' j w b Hx. destruct (Honly p i' j w b) as [? Hj]; [by eapply cut_poss|]. split; [done|].
    intros. apply Hj; [done|lia].
  - done.
  - destruct Hcommit as [Hn|?]; [left|by right]. rewrite Hd, Hu by done.
    apply Nat.le_antisymm; [eapply (upb_le _ _ _ _ HF); lia|]. rewrite <-Hn at 1. eapply (upb_mono _ _ _ _ HF); lia.
  - intros a p Ha. destruct (Hnamed a p Ha) as [(i'&j&w&b&v&?&?) Hst]. split; [|done].
    exists i', j, w, b, v. by rewrite (cut_same f).
Qed.
Lemma gaps_sub lg i n f f' : (∀ p i' j w b, poss f' p (Data i' j w b) → poss f p (Data i' j w b)) → gaps lg i n f → gaps lg i n f'.
Proof.
  intros Hp Hg j p w Hj He. destruct (Hg j p w Hj He) as (j'&p'&w'&b'&?&?&Hn). exists j', p', w', b'.
  split_and!; try done; try lia. intros w0 b0 Hx%Hp. by eapply Hn.
Qed.
Lemma gaps_none lg i n f : uncommitted lg n → gaps lg i n f.
Proof. intros Hu j p w Hj He. by specialize (Hu _ _ _ _ Hj He). Qed.

(** ** What recovery finds *)
Lemma keep_take (l : list entry) k : k ≤ length l → (k = 0 ∨ ∃ p w, l !! (k - 1) = Some (p, w, true)) →
  (∀ j p w b, k ≤ j → l !! j = Some (p, w, b) → b = false) → keep l = take k l.
Proof.
  revert k. induction l as [|[[p w] b] l IH]; intros k Hk Hc Hn; simpl in *; [by rewrite take_nil|].
  destruct k as [|k].
  - assert (keep l = []) as ->.
    { rewrite (IH 0); [done|lia|by left|]. intros j p' w' b' _ Hj. apply (Hn (S j) p' w' b'); [lia|done]. }
    specialize (Hn 0 p w b ltac:(lia) eq_refl) as ->. done.
  - assert (keep l = take k l) as ->.
    { destruct k as [|k].
      - apply IH; [lia|by left|]. intros j p' w' b' _ Hj. apply (Hn (S j) p' w' b'); [lia|done].
      - apply IH; [lia| |].
        + right. destruct Hc as [|(p'&w'&Hc)]; [done|]. exists p', w'.
          replace (S (S k) - 1) with (S k) in Hc by lia. by replace (S k - 1) with k by lia.
        + intros j p' w' b' Hj He. apply (Hn (S j) p' w' b'); [lia|done]. }
    simpl. destruct (take k l) eqn:E; [|done].
    assert (k = 0) as ->. { destruct k; [done|]. destruct l; [simpl in Hk; lia|done]. }
    destruct Hc as [|(p'&w'&Hc)]; [done|]. simpl in Hc. injection Hc as -> -> ->. done.
Qed.
Lemma based_ok lg i n c a : fok lg i n c → dd c = length (dl c) → based c a = mapat lg (upb (dl c) (dd c)) a.
Proof.
  intros HF Hd. destruct (f_rt _ _ _ _ HF) as [Hp Hr]. pose proof (f_dd _ _ _ _ HF).
  assert (∀ k, rpos (rt c) ≤ k → k ≤ length (dl c) → ∃ q, upb (dl c) k ≤ q ≤ upb (dl c) (dd c) ∧
    foldl (λ m d, ovp (chgs d) m) (rmap (rt c)) (drop (rpos (rt c)) (take k (dl c))) a = mapat lg q a) as Hk.
  { induction 1 as [|k Hk IH]; intros Hl.
    - rewrite drop_ge by (rewrite take_length; lia). apply Hr.
    - destruct IH as (q&Hq&He); [lia|]. destruct (lookup_lt_is_Some_2 (dl c) k) as [d Hd']; [lia|].
      rewrite (take_S_r _ _ _ Hd'), drop_app_le, foldl_app by (rewrite take_length; lia). simpl. rewrite Hd'.
      destruct (f_runs _ _ _ _ HF _ _ Hd') as [Hu Hrun]. specialize (Hrun a).
      assert (upto d ≤ upb (dl c) (dd c)).
      { replace (upto d) with (upb (dl c) (S k)) by (simpl; by rewrite Hd'). apply (upb_mono _ _ _ _ HF); lia. }
      unfold ovp at 1. destruct (chgs d a) as [x|].
      + exists (upto d). split; [lia|done].
      + destruct (decide (q ≤ upto d)); [exists (upto d); split; [lia|]; rewrite He; apply Hrun; lia|].
        exists q. split; [lia|done]. }
  destruct (Hk (dd c)) as (q&Hq&He); [lia..|]. rewrite take_ge in He by lia. unfold based. rewrite He.
  by replace q with (upb (dl c) (dd c)) by lia.
Qed.
(** Recovery finds the committed map, and begins after it; and it always finds one. *)
Record found lg i n c (m : mem) : Prop := Fnd {
  d_mi : mi m = S i; d_num : num m = n; d_fn : fn m = n; d_wr : wr m = 0;
  d_mp a : mp m a = mapat lg n a; d_fm a : fm m a = mapat lg n a;
  d_buf a : buf m a = None; d_ck a : ck m a = None; d_ckp : ckp m = 0; d_ckn : ckn m = None;
  d_prs : run_ok lg (upb (dl c) (dd c)) n (prs m) }.
Lemma follow_ok lg i n c l : fok lg i n c → gaps lg i n c → follows c i (upb (dl c) (dd c)) l →
  keep l = take (n - upb (dl c) (dd c)) (drop (upb (dl c) (dd c)) lg).
Proof.
  intros HF Hg [Hl He]. set (u := upb (dl c) (dd c)) in *. pose proof (f_len _ _ _ _ HF) as Hlen.
  assert (u ≤ n) as Hun by (eapply (upb_le _ _ _ _ HF), (f_dd _ _ _ _ HF)).
  assert (∀ j e, l !! j = Some e → lg !! (u + j) = Some e) as Hlg.
  { intros j [[p w] b] Hj. apply (f_only _ _ _ _ HF p i (u + j) w b); [left; symmetry; by apply Hl|done|lia]. }
  assert (n - u ≤ length l) as Hnl.
  { destruct (decide (n - u ≤ length l)); [done|]. destruct (lookup_lt_is_Some_2 lg (u + length l)) as [[[p w] b] He']; [lia|].
    destruct (f_tail _ _ _ _ HF (u + length l) p w b) as [Hpg _]; [lia|done|]. by eapply He in Hpg. }
  rewrite (keep_take l (n - u)); [|done| |].
  - apply list_eq. intros j. destruct (decide (j < n - u)).
    + rewrite !lookup_take, lookup_drop by done. destruct (lookup_lt_is_Some_2 l j) as [e Hj]; [lia|].
      by rewrite Hj, (Hlg _ _ Hj).
    + rewrite !lookup_take_ge by lia. done.
  - destruct (decide (n - u = 0)); [by left|right]. destruct (f_commit _ _ _ _ HF) as [Hu|(p&w&Hc)]; [unfold u in *; lia|].
    destruct (lookup_lt_is_Some_2 l (n - u - 1)) as [e Hj]; [lia|]. exists p, w. rewrite Hj.
    specialize (Hlg _ _ Hj). replace (u + (n - u - 1)) with (n - 1) in Hlg by lia. congruence.
  - intros j p w [] Hj Hlj; [|done]. specialize (Hlg _ _ Hlj) as Hc.
    destruct (Hg (u + j) p w ltac:(lia) Hc) as (j'&p'&w'&b'&Hj'&He'&Hno).
    destruct (lookup_lt_is_Some_2 l (j' - u)) as [[[p2 w2] b2] H2].
    { apply lookup_lt_Some in Hlj. lia. }
    pose proof (Hlg _ _ H2) as H3. replace (u + (j' - u)) with j' in H3 by lia. rewrite He' in H3. injection H3 as <- <- <-.
    edestruct (Hno w' b'). left. symmetry. specialize (Hl _ _ _ _ H2). by replace (u + (j' - u)) with j' in Hl by lia.
Qed.
Lemma recover_found lg i n c m : fok lg i n c → gaps lg i n c → dd c = length (dl c) → recover c m → found lg i n c m.
Proof.
  intros HF Hg Hd Hr. destruct Hr as [d l Hrp Hlast Hf].
  pose proof (f_dd _ _ _ _ HF) as Hdd. pose proof (f_len _ _ _ _ HF) as Hlen.
  assert (upto d = upb (dl c) (dd c)) as Hu.
  { destruct (dd c) as [|k]; [lia|]. simpl in *. rewrite Nat.sub_0_r in Hlast. by rewrite Hlast. }
  assert (inc d = i) as Hi by (eapply (f_inc _ _ _ _ HF); [|done]; lia).
  rewrite Hu, Hi in *. pose proof (follow_ok _ _ _ _ _ HF Hg Hf) as Hk.
  assert (upb (dl c) (dd c) ≤ n) as Hun by (eapply (upb_le _ _ _ _ HF); lia).
  assert (upb (dl c) (dd c) + length (keep l) = n) as Hn.
  { rewrite Hk, take_length, drop_length. lia. }
  pose proof (cover_ok lg _ _ Hun Hlen) as Hcov. rewrite <-Hk in Hcov.
  assert (∀ a, ovp (cover (keep l)) (based c) a = mapat lg n a) as Hmap.
  { intros a. eapply run_ovp; [done|done|]. by eapply based_ok. }
  constructor; simpl; try done.
Qed.
(** The first number that is missing is found, and with it a state. *)
Theorem recovery_ends c : CI c → ∃ m, recover c m.
Proof.
  intros ((Hs&Hq&Hd)&lg&i&n&HF&Hg). pose proof (f_dd _ _ _ _ HF) as Hdd.
  destruct (lookup_lt_is_Some_2 (dl c) (dd c - 1)) as [d Hlast]; [lia|].
  assert (upto d = upb (dl c) (dd c)) as Hu.
  { destruct (dd c) as [|k]; [lia|]. simpl in *. rewrite Nat.sub_0_r in Hlast. by rewrite Hlast. }
  assert (∀ k l, length l + k = length lg - upto d →
    (∀ j p w b, l !! j = Some (p, w, b) → pg c p = Data i (upto d + j) w b) → ∃ l, follows c i (upto d) l) as Hex.
  { induction k as [|k IH]; intros l Hk Hl.
    - exists l. split; [done|]. intros p w b Hp.
      destruct (f_only _ _ _ _ HF p i (upto d + length l) w b) as [_ He]; [by left|].
      specialize (He eq_refl ltac:(lia)). apply lookup_lt_Some in He.
      pose proof (f_len _ _ _ _ HF). assert (upto d ≤ n) by (rewrite Hu; eapply (upb_le _ _ _ _ HF); lia). lia.
    - destruct (lookup_lt_is_Some_2 lg (upto d + length l)) as [[[p w] b] He]; [lia|].
      destruct (pg c p) as [| |i' j' w' b'] eqn:E.
      3: destruct (decide (i' = i ∧ j' = upto d + length l)) as [[-> ->]|Hn].
      3: { eapply (IH (l ++ [(p, w', b')])); [rewrite app_length; simpl; lia|].
           intros j q w2 b2 Hj. apply lookup_app_Some in Hj as [Hj|[Hj1 Hj2]]; [by apply Hl|].
           apply list_lookup_singleton_Some in Hj2 as [Hj2 [= <- <- <-]]. by replace j with (length l) by lia. }
      all: exists l; split; [done|]; intros q w2 b2 Hq2;
        destruct (f_only _ _ _ _ HF q i (upto d + length l) w2 b2) as [_ He2]; [by left|];
        specialize (He2 eq_refl ltac:(lia)); rewrite He in He2; injection He2 as <- <- <-; rewrite E in Hq2; naive_solver. }
  destruct (Hex (length lg - upto d) []) as [l Hl]; [done|done|].
  assert (inc d = i) as Hi by (eapply (f_inc _ _ _ _ HF); [|done]; lia).
  eexists. apply (recovered c d l); [|done|by rewrite Hi]. apply (f_rt _ _ _ _ HF).
Qed.
Lemma image_CI lg i n f c : fok lg i n f → gaps lg i n c → cut f c → CI c.
Proof.
  intros HF Hg Hc. split; [eapply cut_definite; [done|]; apply (f_dd _ _ _ _ HF)|]. exists lg, i, n. split; [by eapply fok_cut|done].
Qed.
Lemma look_cut f c x a : cut f c → (∀ p, x = Some p → still f p) → look zero (pg c) x a = look zero (pg f) x a.
Proof. intros Hc Hs. destruct x as [p|]; [|done]. simpl. by rewrite (cut_same f c p Hc (Hs p eq_refl)). Qed.
(** What a cut leaves reads as the committed map did. *)
Lemma image_CR lg i n f c (s : sector → content) : fok lg i n f → gaps lg i n c → cut f c →
  (∀ a, s a = look zero (pg f) (mapat lg n a) a) → CR zero c s.
Proof.
  intros HF Hg Hc Hs m Hm a. pose proof (fok_cut _ _ _ _ _ HF Hc) as HFc.
  assert (dd c = length (dl c)) as Hd by (eapply cut_definite; [done|]; apply (f_dd _ _ _ _ HF)).
  destruct (recover_found _ _ _ _ _ HFc Hg Hd Hm) as [_ _ _ _ Hmp _ _ _ _ _ _]. rewrite Hmp, Hs. symmetry.
  eapply look_cut; [done|]. intros p Hp. by apply (f_named _ _ _ _ HF a p).
Qed.
End recover.
