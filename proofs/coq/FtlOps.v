(** Per-operation correctness of the log, and so its snapshot consistency. *)
From stdpp Require Import prelude functions list relations.
From Steadfast Require Import Ftl FtlLog FtlRecover.

Section ops.
Context {sector content page block : Type} `{!EqDecision sector, !EqDecision page, !EqDecision block}.
Context (blk : page → block) (zero : content) (inside : sector → bool) (bound : nat).
Notation says := (sector → option (option content)).
Notation entry := (page * says * bool)%type.
Notation flash := (@flash sector content page).
Notation mem := (@mem sector content page).
Notation op := (@op sector content).
Notation sdisk := (@sdisk sector content).
Notation disk := (sector → content).
Notation inner := (inner blk zero).
Notation step := (step blk zero inside bound).
Notation AR := (AR zero).
Notation CR := (CR zero).
Notation reads := (reads zero).
Notation look := (look zero).
Implicit Types (lg : list entry) (f c : flash) (m : mem) (t : sdisk).

(** ** What may happen within any operation *)
Lemma rok_le lg m f k : rok lg m f → k ≤ length (dl f) → upb (dl f) k ≤ fn m ∧ fn m ≤ length lg.
Proof. intros HR Hk. split; [by eapply upb_le; [apply HR|]|apply HR]. Qed.
Lemma rok_program lg m f p w b : rok lg m f → fresh f p →
  rok (lg ++ [(p, w, b)]) (sealed (p, w, b) m) (program p (Data (mi m) (num m) w b) f).
Proof.
  intros HR Hf. pose proof HR as [HF Hnum Hmp Hfm Htail Hnamed Hprs Hckp Hck Hckn].
  assert (∀ k, k ≤ length (dl f) → upb (dl f) k ≤ fn m) as Hup by (intros; by eapply rok_le).
  assert (fn m ≤ length lg) as Hln by apply HF.
  pose proof (f_dd _ _ _ _ HF) as Hdd. rewrite Hnum.
  assert (length (lg ++ [(p, w, b)]) = S (length lg)) as Hlen by (rewrite app_length; simpl; lia).
  constructor; simpl; rewrite ?Hlen.
  - apply fok_program; [done..|]. specialize (Hup (dd f)). lia.
  - lia.
  - intros a. rewrite mapat_all. unfold chg. by rewrite Hmp.
  - intros a. rewrite mapat_app; [apply Hfm|done].
  - intros j q w' b' Hj [He|[Hl He]]%lookup_app_Some.
    + specialize (Htail _ _ _ _ Hj He). destruct (decide (q = p)) as [->|]; [destruct Hf; congruence|].
      by rewrite fn_lookup_insert_ne.
    + apply list_lookup_singleton_Some in He as [? [= <- <- <-]]. rewrite fn_lookup_insert. f_equal. lia.
  - intros a q. rewrite mapat_all. unfold chg. simpl. destruct (w a) as [[v|]|] eqn:E; [intros [= <-]|done|].
    + exists (mi m), (length lg), w, b, v. simpl. by rewrite fn_lookup_insert.
    + intros (i&j&w'&b'&v&Hpg&Hw)%Hnamed. exists i, j, w', b', v. simpl. rewrite fn_lookup_insert_ne; [done|].
      intros ->. destruct Hf. congruence.
  - apply run_cov; [specialize (Hup (length (dl f))); lia|by apply list_lookup_middle|]. eapply run_ext; [|done].
    intros k Hk. by apply mapat_app.
  - done.
  - intros a x Hx. destruct (Hck a x Hx) as (k&?&Hk&->). exists k. split_and!; try done.
    rewrite mapat_app; [done|]. etrans; [apply Hk|]. destruct (ckn m) as [n|] eqn:E; [|done].
    specialize (Hup n). destruct (Hckn n eq_refl). lia.
  - done.
Qed.
Lemma rok_buffer lg m f B n : rok lg m f → rok lg (buffer B n m) f.
Proof. intros []. by constructor. Qed.
Lemma rok_uncommitted lg m p w : uncommitted lg (fn m) → uncommitted (lg ++ [(p, w, false)]) (fn m).
Proof.
  intros Hu j q w' b Hj [He|[_ He]]%lookup_app_Some; [by eapply Hu|].
  by apply list_lookup_singleton_Some in He as [_ [= <- <- <-]].
Qed.
Lemma look_program f p x y a : pg f p = Blank → (∀ q, y = Some q → pg f q ≠ Blank) →
  look (pg (program p x f)) y a = look (pg f) y a.
Proof.
  intros Hb Hy. destruct y as [q|]; [|done]. simpl. rewrite fn_lookup_insert_ne; [done|].
  intros ->. by apply (Hy q).
Qed.
Lemma look_erase f b y a : (∀ q, y = Some q → blk q ≠ b) → look (pg (erase blk b f)) y a = look (pg f) y a.
Proof. intros Hy. destruct y as [q|]; [|done]. simpl. rewrite decide_False; [done|by apply Hy]. Qed.
Lemma rok_mp_data lg m f a q : rok lg m f → mp m a = Some q → pg f q ≠ Blank.
Proof. intros HR Ha. rewrite (r_mp _ _ _ HR) in Ha. by eapply holds_data, (r_named _ _ _ HR). Qed.
Lemma rok_fm_data lg m f a q : rok lg m f → fm m a = Some q → pg f q ≠ Blank ∧ still f q.
Proof.
  intros HR Ha. rewrite (r_fm _ _ _ HR) in Ha. destruct (f_named _ _ _ _ (r_f _ _ _ HR) a q Ha).
  split; [by eapply holds_data|done].
Qed.
Lemma rok_erase lg m f b : rok lg m f →
  (∀ a p, mp m a = Some p → blk p ≠ b) → (∀ a p, fm m a = Some p → blk p ≠ b) →
  (∀ p n w x, blk p = b → pg f p = Data (mi m) n w x → n < upb (dl f) (dd f)) → rok lg m (erase blk b f).
Proof.
  intros HR Hm Hc Ho. pose proof HR as [HF Hnum Hmp Hfm Htail Hnamed Hprs Hckp Hck Hckn].
  assert (∀ j p w b', upb (dl f) (dd f) ≤ j → lg !! j = Some (p, w, b') → blk p ≠ b) as Ht.
  { intros j p w b' Hj He Hb. specialize (Ho p j w b' Hb (Htail _ _ _ _ Hj He)). lia. }
  constructor; try done; simpl.
  - apply fok_erase; [done|]. intros p [(j&w&b'&Hj&He)|[a Ha]]; [eapply Ht; [apply Hj|done]|].
    apply (Hc a). by rewrite Hfm.
  - intros j p w b' Hj He. rewrite decide_False by by eapply Ht. by apply Htail.
  - intros a p Ha. destruct (Hnamed a p Ha) as (i&j&w&b'&v&?&?). exists i, j, w, b', v. simpl.
    rewrite decide_False; [done|]. apply (Hm a). by rewrite Hmp.
Qed.
Lemma rok_run lg m f : rok lg m f → num m = fn m → rok lg (told m) (append (Run (fn m) (mi m) (prs m)) f).
Proof.
  intros HR He. pose proof HR as [HF Hnum Hmp Hfm Htail Hnamed Hprs Hckp Hck Hckn].
  pose proof (f_dd _ _ _ _ HF) as Hdd.
  constructor; simpl; try done.
  - apply fok_append; [done|]. rewrite <-He, Hnum. done.
  - intros j p w b. rewrite upb_app by lia. apply Htail.
  - rewrite upb_last. simpl. rewrite <-He, Hnum. apply run_none.
  - rewrite app_length. lia.
  - intros a x Hx. destruct (Hck a x Hx) as (k&?&?&?). exists k. rewrite upb_app by done. split_and!; try done.
    destruct (ckn m) as [n|] eqn:E; [|done]. destruct (Hckn n eq_refl). rewrite upb_app by lia. done.
  - intros n Hn. rewrite app_length. destruct (Hckn n Hn). split; [lia|done].
Qed.
Lemma rok_check lg m f q k n : rok lg m f → k ≤ length (dl f) →
  (∀ a x, q a = Some x → ∃ j, upb (dl f) k ≤ j ∧ j ≤ match n with Some n => upb (dl f) n | None => fn m end ∧ x = mapat lg j a) →
  (∀ j, n = Some j → k < j ≤ length (dl f) ∧ ∀ a, is_Some (q a)) → rok lg (check q k n m) f.
Proof. intros [] H1 H2 H3. by constructor. Qed.
Lemma rok_reroot lg m f r : rok lg m f → root_ok lg f r → rok lg m (reroot r f).
Proof. intros [] Hr. constructor; try done. by apply fok_reroot. Qed.

Lemma inner_ok m f m' f' : inner m f m' f' → RI m f →
  RI m' f' ∧ (∀ a, reads m' f' a = reads m f a) ∧
  (∀ a, look (pg f') (fm m' a) a = look (pg f) (fm m a) a) ∧ wr m' = wr m.
Proof.
  intros Hi (lg&HR&Hu). destruct Hi as [m f p Hf|m f p w Hf Hw|m f b Hm Hc Ho|m f He|m f|m f P He Hn|m f He Ha|m f k Hk Hd Hq].
  - split_and!.
    + exists (lg ++ [(p, buf m, false)]). split; [by apply rok_buffer, rok_program|by apply (rok_uncommitted lg m)].
    + intros a. unfold reads, sealed, buffer, chg. simpl. destruct (buf m a) as [[v|]|] eqn:E; simpl.
      * rewrite fn_lookup_insert. by rewrite E.
      * done.
      * apply look_program; [apply Hf|]. intros q. by apply (rok_mp_data lg).
    + intros a. apply look_program; [apply Hf|]. intros q ?. by eapply rok_fm_data.
    + done.
  - split_and!.
    + exists (lg ++ [(p, w, false)]). split; [by apply rok_program|by apply (rok_uncommitted lg m)].
    + intros a. unfold reads, sealed, chg. simpl. destruct (buf m a) as [|]; [done|].
      destruct (w a) as [x|] eqn:E.
      * destruct (Hw a x E) as (q&Hq&->). rewrite Hq. simpl. rewrite fn_lookup_insert. by rewrite E.
      * apply look_program; [apply Hf|]. intros q. by apply (rok_mp_data lg).
    + intros a. apply look_program; [apply Hf|]. intros q ?. by eapply rok_fm_data.
    + done.
  - split_and!; [|intros a|intros a|done].
    + exists lg. split; [by apply rok_erase|done].
    + unfold reads. destruct (buf m a); [done|]. apply look_erase. intros q. apply Hm.
    + apply look_erase. intros q. apply Hc.
  - split_and!; try done. exists lg. split; [by apply rok_run|done].
  - split_and!; try done. exists lg. split; [by apply rok_check|done].
  - split_and!; try done. exists lg. split; [|done]. apply rok_check; [done|apply HR| |done].
    intros a x. destruct (P a); [intros [= <-]|].
    + exists (fn m). split_and!; [|done|].
      * by eapply upb_le; [apply HR|apply HR].
      * rewrite (r_mp _ _ _ HR). by rewrite <-(r_num _ _ _ HR), He.
    + intros Hx. destruct (r_ck _ _ _ HR a x Hx) as (k&?&Hk&?). rewrite Hn in Hk. eauto.
  - split_and!; try done. exists lg. split; [|done]. pose proof (r_ckp _ _ _ HR) as Hp.
    pose proof (rok_run _ _ _ HR He) as HR2.
    apply rok_check; [done|simpl; rewrite app_length; lia| |].
    + intros a x Hx. destruct (r_ck _ _ _ HR a x Hx) as (k&?&Hk&?). exists k. simpl.
      rewrite upb_app by done. split_and!; try done.
      rewrite list_lookup_middle by done. simpl. destruct (ckn m) as [n|] eqn:E; [|done]. etrans; [apply Hk|].
      eapply upb_le; [apply HR|]. by destruct (r_ckn _ _ _ HR n E) as [[??] _].
    + intros j [= <-]. simpl. rewrite app_length. simpl. split; [lia|done].
  - split_and!; try done. exists lg. split; [|done]. destruct (r_ckn _ _ _ HR k Hk) as [Hp Ha].
    apply rok_reroot.
    + apply rok_check; [done|apply HR|done|done].
    + split; [simpl; lia|]. intros a. destruct (Ha a) as [x Hx]. simpl. rewrite Hx. simpl.
      destruct (r_ck _ _ _ HR a x Hx) as (q&?&Hle&->). rewrite Hk in Hle. exists q. split; [|done]. split; [done|].
      etrans; [apply Hle|]. eapply upb_mono; [apply HR|done|]. apply (f_dd _ _ _ _ (r_f _ _ _ HR)).
Qed.
Lemma inner_AR m f m' f' t : inner m f m' f' → RI m f → AR m f t → AR m' f' t.
Proof.
  intros Hi HR (Hv&Hs&Hw). destruct (inner_ok _ _ _ _ Hi HR) as (_&Hr&Hl&He). split_and!; [| |lia]; intros a.
  - by rewrite Hr.
  - by rewrite Hl.
Qed.

(** ** Cuts *)
Lemma cut_idle m f c t : RI m f → AR m f t → cut f c → CI c ∧ CR c (stb t).
Proof.
  intros (lg&HR&Hu) (_&Hs&_) Hc. pose proof (gaps_none lg (mi m) (fn m) c Hu) as Hg. pose proof (r_f _ _ _ HR) as HF. split.
  - by eapply image_CI.
  - eapply image_CR; [done..|]. intros a. by rewrite Hs, (r_fm _ _ _ HR).
Qed.
(** A flush has programmed its last page, and not yet synced. *)
Definition waits lg m f : Prop := rok lg m f ∧ fn m < length lg ∧
  (∃ p w, lg !! (length lg - 1) = Some (p, w, true)) ∧
  (∀ j p w, fn m ≤ j → lg !! j = Some (p, w, true) → S j = length lg).
Lemma rok_present lg m f c j p w b : rok lg m f → cut f c → upb (dl f) (dd f) ≤ j → lg !! j = Some (p, w, b) →
  pg c p = Data (mi m) j w b ∨ ∀ w b, ¬ poss c p (Data (mi m) j w b).
Proof.
  intros HR Hc Hj He.
  assert (∀ w' b', poss c p (Data (mi m) j w' b') → w' = w ∧ b' = b) as Hu.
  { intros w' b' Hx%(cut_poss f). 2: done. destruct (f_only _ _ _ _ (r_f _ _ _ HR) _ _ _ _ _ Hx) as [_ Hl].
    specialize (Hl eq_refl Hj). rewrite He in Hl. by injection Hl as -> ->. }
  destruct (pg c p) as [| |i' j' w' b'] eqn:E.
  1, 2: right; intros w' b' [Hx|Hx]; [congruence|by eapply Hc in Hx].
  destruct (decide (i' = mi m ∧ j' = j)) as [[-> ->]|Hn].
  - destruct (Hu w' b') as [-> ->]; [by left|]. by left.
  - right. intros w2 b2 [Hx|Hx]; [|by eapply Hc in Hx]. apply Hn. split; congruence.
Qed.
(** All pages of the flush are there, or one is missing. *)
Lemma rok_all lg m f c k : rok lg m f → cut f c → fn m ≤ k →
  (∀ j p w b, fn m ≤ j < k → lg !! j = Some (p, w, b) → pg c p = Data (mi m) j w b) ∨
  (∃ j p w b, fn m ≤ j < k ∧ lg !! j = Some (p, w, b) ∧ ∀ w b, ¬ poss c p (Data (mi m) j w b)).
Proof.
  intros HR Hc. assert (upb (dl f) (dd f) ≤ fn m) as Hu.
  { by eapply upb_le; [apply HR|]; apply (f_dd _ _ _ _ (r_f _ _ _ HR)). }
  induction 1 as [|k Hk [IH|(j&p&w&b&?&?&?)]].
  - left. intros. lia.
  - destruct (lg !! k) as [[[p w] b]|] eqn:E.
    + destruct (rok_present _ _ _ _ k p w b HR Hc) as [Hp|Hp]; [lia|done| |].
      * left. intros j p' w' b' Hj He. destruct (decide (j = k)) as [->|]; [congruence|]. apply IH; [lia|done].
      * right. exists k, p, w, b. split_and!; [lia|lia|done|done].
    + left. intros j p' w' b' Hj He. destruct (decide (j = k)) as [->|]; [congruence|]. apply IH; [lia|done].
  - right. exists j, p, w, b. split_and!; [lia|lia|done|done].
Qed.
(** All there: the flush is. *)
Lemma fok_flushed lg m f c : waits lg m f → cut f c →
  (∀ j p w b, fn m ≤ j < length lg → lg !! j = Some (p, w, b) → pg c p = Data (mi m) j w b) →
  fok lg (mi m) (length lg) c ∧ ∀ a p, mapat lg (length lg) a = Some p → pg c p = pg f p.
Proof.
  intros (HR&Hl&Hlast&_) Hc Hall. pose proof (fok_cut _ _ _ _ _ (r_f _ _ _ HR) Hc) as HF.
  pose proof HR as [HFf Hnum Hmp Hfm Htail Hnamed Hprs Hckp Hck Hckn].
  assert (∀ k a p, fn m ≤ k → k ≤ length lg → mapat lg k a = Some p →
    mapat lg (fn m) a = Some p ∨ ∃ j w b, fn m ≤ j < length lg ∧ lg !! j = Some (p, w, b)) as Hwhere.
  { intros k a p Hk. induction Hk as [|k Hk IH]; intros Hkl Ha; [by left|].
    destruct (lookup_lt_is_Some_2 lg k) as [[[q w] b] He]; [lia|]. rewrite (mapat_S _ _ _ He) in Ha.
    unfold chg in Ha. simpl in Ha. destruct (w a) as [[v|]|] eqn:E; [injection Ha as ->|done|apply IH; [lia|done]].
    right. exists k, w, b. split; [lia|done]. }
  assert (∀ a p, mapat lg (length lg) a = Some p → pg c p = pg f p) as Hsame.
  { intros a p Ha. destruct (Hwhere (length lg) a p) as [Hn|(j&w&b&Hj&He)]; [lia|done|done| |].
    - apply cut_same; [done|]. by apply (f_named _ _ _ _ HFf a).
    - rewrite (Hall j p w b Hj He). symmetry. apply Htail; [|done].
      etrans; [|apply Hj]. by eapply upb_le; [apply HFf|]; apply (f_dd _ _ _ _ HFf). }
  split; [|done]. destruct HF as [Hdd Hruns Hrt Hrq Hinc Htailc Honly Hlen Hcommit Hnamedc].
  constructor; try done.
  - intros j d Hd. destruct (Hruns j d Hd). split; [lia|done].
  - intros j p w b Hj He. split; [|apply Hc]. destruct (decide (j < fn m)).
    + by apply (Htailc j p w b); [lia|].
    + apply Hall; [lia|done].
  - right. done.
  - intros a p Ha. split; [|apply Hc]. destruct (Hnamed a p Ha) as (i&j&w&b&v&?&?). exists i, j, w, b, v.
    by rewrite (Hsame a).
Qed.
Lemma cut_wait lg m f c t : waits lg m f → AR m f t → (∀ a, buf m a = None) → cut f c →
  CI c ∧ (CR c (stb t) ∨ CR c (vol t)).
Proof.
  intros HW (Hv&Hs&_) Hb Hc. pose proof HW as (HR&Hl&Hlast&Hone). pose proof (r_f _ _ _ HR) as HF.
  destruct (rok_all lg m f c (length lg) HR Hc) as [Hall|(j&p&w&b&Hj&He&Hno)]; [lia| |].
  - destruct (fok_flushed _ _ _ _ HW Hc Hall) as [HFc Hsame].
    assert (gaps lg (mi m) (length lg) c) as Hg by (intros j p w Hj He%lookup_lt_Some; lia).
    assert (definite c) as Hd by (eapply cut_definite; [done|apply HF]).
    split; [split; [done|by exists lg, (mi m), (length lg)]|]. right. intros m2 Hm2 a.
    destruct (recover_found _ _ _ _ _ HFc Hg (proj2 (proj2 Hd)) Hm2) as [_ _ _ _ Hmp2 _ _ _ _ _ _].
    rewrite Hmp2, Hv. unfold reads. rewrite Hb, (r_mp _ _ _ HR). destruct (mapat lg (length lg) a) as [p|] eqn:E; [|done].
    simpl. by rewrite (Hsame a).
  - assert (gaps lg (mi m) (fn m) c) as Hg.
    { intros j' p' w' Hj' He'. exists j, p, w, b. specialize (Hone _ _ _ Hj' He'). split_and!; try done; lia. }
    split; [by eapply image_CI|]. left. eapply image_CR; [done..|]. intros a. by rewrite Hs, (r_fm _ _ _ HR).
Qed.
Lemma sync_wait lg m f t : waits lg m f → AR m f t → (∀ a, buf m a = None) →
  RI (committed m) (sync f) ∧ AR (committed m) (sync f) (T (vol t) (vol t) 0).
Proof.
  intros HW (Hv&Hs&_) Hb. pose proof HW as (HR&Hl&Hlast&Hone).
  pose proof HR as [HF Hnum Hmp Hfm Htail Hnamed Hprs Hckp Hck Hckn].
  pose proof HF as [Hdd Hruns Hrt Hrq Hinc _ Honly Hlen Hcommit _].
  assert (upb (dl f) (dd f) ≤ upb (dl f) (length (dl f))) as Hu by (eapply upb_mono; [done|lia|lia]).
  assert (∀ r, root_ok lg f r → root_ok lg (sync f) r) as Hroot.
  { intros r [? Hr]. split; [simpl; lia|]. intros a. destruct (Hr a) as (k&?&?). exists k. simpl. split; [lia|done]. }
  split.
  - exists lg. split.
    + constructor; simpl; try done.
      * constructor; simpl; try done.
        -- lia.
        -- intros j d Hd. destruct (Hruns j d Hd). split; [lia|done].
        -- destruct (rq f) as [r|] eqn:E; apply Hroot; [by apply Hrq|done].
        -- intros j d Hj Hd. apply (Hinc j); [lia|done].
        -- intros j p w b Hj He. split; [|intros ?; tauto]. apply Htail; [lia|done].
        -- intros p i' j w b [Hx|[]]. destruct (Honly p i' j w b) as [? Hy]; [by left|]. split; [done|].
           intros. apply Hy; [done|lia].
        -- lia.
        -- right. by rewrite Hnum.
        -- intros a p Ha. split; [|intros ?; tauto]. rewrite Hnum in Ha. by apply Hnamed.
      * intros a. by rewrite Hnum.
      * intros j p w b Hj. apply Htail. lia.
      * intros a x Hx. destruct (Hck a x Hx) as (k&?&?&?). exists k. split_and!; try done.
        destruct (ckn m); [done|lia].
    + intros j p w b Hj He%lookup_lt_Some. simpl in Hj. lia.
  - split_and!; simpl; [| |done]; intros a.
    + rewrite Hv. unfold reads. simpl. done.
    + rewrite Hv. unfold reads. by rewrite Hb.
Qed.

(** ** The operations *)
Definition at_pc (o : op) t (x : pc * flash) : Prop :=
  match x.1 with
  | Go o' m => o' = o ∧ RI m x.2 ∧ AR m x.2 t
  | No m => refusable inside bound o t ∧ RI m x.2 ∧ AR m x.2 t
  | Fin m => fits inside o ∧ RI m x.2 ∧ AR m x.2 (after zero o t)
  | Wait m => o = Flush ∧ AR m x.2 t ∧ (∀ a, buf m a = None) ∧ ∃ lg, waits lg m x.2
  | _ => False
  end.
Lemma at_step o t x y : step x y → at_pc o t x → at_pc o t y.
Proof.
  intros Hs Hx. destruct Hs as [o' m f m' f' Hi|m f m' f' Hi|a d m f Ha Hw|a d m f Hw|P m f HP Hw|P a m f Hw|o' m f Ho|m f Hn Hb Hw|m f p Hf|m f|m f b Hb Ht|m f|m f]; try done; simpl in *.
  - destruct Hx as (->&HR&HA). split_and!; [done|by eapply inner_ok|by eapply inner_AR].
  - destruct Hx as (?&HR&HA). split_and!; [done|by eapply inner_ok|by eapply inner_AR].
  - destruct Hx as (<-&(lg&HR&Hu)&(Hv&Hs&Hc)). simpl. split_and!; try done.
    + exists lg. split; [by apply rok_buffer|done].
    + split_and!; [|done|simpl; lia]. intros b. unfold reads. simpl. destruct (decide (b = a)) as [->|].
      * by rewrite !fn_lookup_insert.
      * rewrite !fn_lookup_insert_ne by done. apply Hv.
  - destruct Hx as (<-&HR&HA). simpl. split_and!; [|done|done]. destruct HA as (_&_&Hc). destruct Hw as [Hw|Hw]; [|right; lia].
    left. intros Hi. simpl in Hi. congruence.
  - destruct Hx as (<-&(lg&HR&Hu)&(Hv&Hs&Hc)). simpl. split_and!; try done.
    + exists lg. split; [by apply rok_buffer|done].
    + split_and!; [|done|simpl; lia]. intros b. unfold reads. simpl. destruct (P b); [done|]. apply Hv.
  - destruct Hx as (<-&HR&HA). simpl. split_and!; [|done|done]. destruct HA as (_&_&Hc). destruct Hw as [[Hp Hn]|Hw]; [|right; lia].
    left. intros Hi. specialize (Hi a Hp). congruence.
  - destruct Hx as (<-&HR&HA). split_and!; [by destruct Ho as [->|[->| ->]]|done|].
    by destruct Ho as [->|[->| ->]].
  - destruct Hx as (<-&HR&(Hv&Hs&Hc)). split_and!; try done. split_and!; simpl; [done| |lia].
    intros a. rewrite Hv. unfold reads. rewrite Hb. destruct HR as (lg&HR&_). f_equal.
    by rewrite (r_mp _ _ _ HR), (r_fm _ _ _ HR), <-(r_num _ _ _ HR), Hn.
  - destruct Hx as (<-&(lg&HR&Hu)&HA). split_and!; try done.
    + destruct HA as (Hv&Hs&Hc). split_and!; [| |done]; intros a; simpl.
      * rewrite Hv. unfold reads, sealed, buffer, chg. simpl. symmetry. destruct (buf m a) as [[v|]|] eqn:E; simpl.
        -- rewrite fn_lookup_insert. by rewrite E.
        -- done.
        -- apply look_program; [apply Hf|]. intros q. by apply (rok_mp_data lg).
      * rewrite Hs. symmetry. apply look_program; [apply Hf|]. intros q ?. by eapply rok_fm_data.
    + exists (lg ++ [(p, buf m, true)]). split_and!; simpl.
      * by apply rok_buffer, rok_program.
      * rewrite app_length. simpl. pose proof (f_len _ _ _ _ (r_f _ _ _ HR)). lia.
      * exists p, (buf m). rewrite app_length. simpl. apply list_lookup_middle. lia.
      * intros j q w Hj [He|[Hl He]]%lookup_app_Some; [by specialize (Hu _ _ _ _ Hj He)|].
        apply list_lookup_singleton_Some in He as [? _]. rewrite app_length. simpl. lia.
  - destruct Hx as (->&HA&Hb&lg&HW). destruct (sync_wait lg m f t HW HA Hb). by split_and!.
Qed.
Lemma at_cut o t p f c : at_pc o t (p, f) → cut f c → CI c ∧ (CR c (stb t) ∨ (o = Flush ∧ CR c (vol t))).
Proof.
  intros Hp Hc. destruct p as [o' m|m|m|m|m|m]; simpl in Hp; try done.
  - destruct Hp as (->&HR&HA). destruct (cut_idle _ _ _ _ HR HA Hc). auto.
  - destruct Hp as (->&HA&Hb&lg&HW). destruct (cut_wait _ _ _ _ _ HW HA Hb Hc) as [? [?|?]]; auto.
  - destruct Hp as (_&HR&HA). destruct (cut_idle _ _ _ _ HR HA Hc). split; [done|]. destruct o; auto.
  - destruct Hp as (_&HR&HA). destruct (cut_idle _ _ _ _ HR HA Hc). auto.
Qed.
Definition disk_of m f : sdisk := T (reads m f) (λ a, look (pg f) (fm m a) a) (wr m).
Lemma AR_of m f : AR m f (disk_of m f).
Proof. by split_and!. Qed.

(** ** Recovery *)
Lemma fok_begin lg i n f q c : fok lg i n f → dd f = length (dl f) → run_ok lg (upb (dl f) (dd f)) n q →
  (∀ p, poss f p (pg c p)) → (∀ p, still c p) → rt c = rt f → rq c = None →
  dl c = dl f ++ [Run n (S i) q] → dd c = length (dl c) →
  fok (take n lg) (S i) n c ∧ gaps (take n lg) (S i) n c.
Proof.
  intros HF Hd Hr Hp Hs Hrt' Hrq' Hl Hdc. pose proof HF as [Hdd Hruns [Hrt1 Hrt2] Hrq Hinc Htail Honly Hlen Hcommit Hnamed].
  assert (upb (dl c) (dd c) = n) as Hu by by rewrite Hdc, Hl, upb_last.
  assert (∀ k, k ≤ n → mapat (take n lg) k = mapat lg k) as Hm by (intros; by apply mapat_take).
  assert (length (dl c) = S (length (dl f))) as Hlc by (rewrite Hl, app_length; simpl; lia).
  assert (upb (dl f) (dd f) ≤ n) as Hun by (eapply upb_le; [done|lia]).
  split; [constructor|].
  - lia.
  - intros j d Hj. rewrite Hl in Hj. apply lookup_app_Some in Hj as [Hj|[Hj1 Hj2]].
    + rewrite Hl, upb_app by (apply lookup_lt_Some in Hj; lia). destruct (Hruns j d Hj) as [? Hr']. split; [done|].
      eapply run_ext; [|done]. intros. apply Hm. lia.
    + apply list_lookup_singleton_Some in Hj2 as [Hj2 <-]. replace j with (dd f) by lia. simpl.
      rewrite Hl, upb_app by lia. split; [lia|]. eapply run_ext; [|done]. done.
  - rewrite Hrt'. split; [lia|]. intros a. destruct (Hrt2 a) as (k&Hk&He). exists k. rewrite Hu, Hm by lia.
    rewrite Hl, upb_app by lia. split; [lia|done].
  - by rewrite Hrq'.
  - intros j d Hj Hd'. rewrite Hl in Hd'. apply lookup_app_Some in Hd' as [Hd'%lookup_lt_Some|[_ Hd']]; [lia|].
    by apply list_lookup_singleton_Some in Hd' as [_ <-].
  - intros j p w b Hj. lia.
  - intros p i' j w b [Hx|Hx]; [|by eapply Hs in Hx]. pose proof (Hp p) as Hq. rewrite <-Hx in Hq.
    apply Honly in Hq as [? _]. split; [lia|]. intros. lia.
  - rewrite take_length. lia.
  - by left.
  - intros a p. rewrite Hm by done. intros Ha. destruct (Hnamed a p Ha) as [(i'&j&w&b&v&Hpg&?) Hst]. split; [|apply Hs].
    exists i', j, w, b, v. split; [|done]. destruct (Hp p) as [->|Hx]; [done|by eapply Hst in Hx].
  - intros j p w Hj He%lookup_lt_Some. rewrite take_length in He. lia.
Qed.
(** A mount has found what it goes back to. *)
Definition looking (s : disk) m f : Prop := ∃ lg i n,
  fok lg i n f ∧ gaps lg i n f ∧ dd f = length (dl f) ∧ rq f = None ∧ found lg i n f m ∧
  ∀ a, s a = look (pg f) (mp m a) a.
Definition says_so m f : flash := append (Run (fn m) (mi m) (prs m)) f.
Definition at_mount (s : disk) (x : pc * flash) : Prop :=
  match x.1 with
  | Found m => looking s m x.2
  | Begun m => ∃ m0 f0, looking s m0 f0 ∧ m = told m0 ∧ x.2 = says_so m0 f0
  | Fin m => RI m x.2 ∧ AR m x.2 (T s s 0)
  | _ => False
  end.
Lemma begun_ok s m f : looking s m f → RI (told m) (sync (says_so m f)) ∧ AR (told m) (sync (says_so m f)) (T s s 0).
Proof.
  intros (lg&i&n&HF&_&Hd&Hq&[Hmi Hnum Hfn Hwr Hmp Hfm Hbuf Hck Hckp Hckn Hprs]&Hs).
  destruct (fok_begin lg i n f (prs m) (sync (says_so m f))) as [HF2 _]; try done.
  - intros p. by left.
  - intros p y [].
  - simpl. by rewrite Hq.
  - simpl. by rewrite Hfn, Hmi.
  - pose proof (f_len _ _ _ _ HF) as Hlen.
    assert (length (take n lg) = n) as Hl by (rewrite take_length; lia).
    assert (upb (dl f ++ [Run (fn m) (mi m) (prs m)]) (length (dl f ++ [Run (fn m) (mi m) (prs m)])) = n) as Hu
      by by rewrite upb_last.
    split.
    + exists (take n lg). split.
      * constructor; simpl; rewrite ?Hl, ?Hu; try done.
        -- by rewrite Hmi, Hfn.
        -- intros a. by rewrite mapat_take.
        -- intros a. by rewrite Hfn, mapat_take.
        -- intros j p w b Hj He%lookup_lt_Some. lia.
        -- intros a p. rewrite mapat_take by done. intros Ha. by apply (f_named _ _ _ _ HF).
        -- apply run_none.
        -- lia.
        -- intros a x. by rewrite Hck.
        -- by rewrite Hckn.
      * intros j p w b Hj He%lookup_lt_Some. simpl in Hj. lia.
    + split_and!; simpl; [intros a|intros a|lia].
      * rewrite Hs. unfold reads. simpl. by rewrite Hbuf.
      * by rewrite Hs, Hmp, Hfm.
Qed.
Lemma mount_step s x y : step x y → at_mount s x → at_mount s y.
Proof.
  intros Hs Hx. destruct Hs as [o' m f m' f' Hi|m f m' f' Hi|a d m f Ha Hw|a d m f Hw|P m f HP Hw|P a m f Hw|o' m f Ho|m f Hn Hb Hw|m f p Hf|m f|m f b Hb Ht|m f|m f]; try done; simpl in *.
  - destruct Hx as (HR&HA). split; [by eapply inner_ok|by eapply inner_AR].
  - destruct Hx as (lg&i&n&HF&Hg&Hd&Hq&Hfd&Hl). exists lg, i, n. split_and!; try done.
    + apply fok_erase; [done|]. intros p [(j&w&x&Hj&He)|[a Ha]].
      * intros Hpb. destruct (f_tail _ _ _ _ HF _ _ _ _ Hj He) as [Hpg _].
        specialize (Ht p i j w x Hpb Hpg (d_mi _ _ _ _ _ Hfd)). rewrite (d_fn _ _ _ _ _ Hfd) in Ht. lia.
      * apply (Hb a). by rewrite (d_mp _ _ _ _ _ Hfd).
    + eapply gaps_sub; [|done]. intros p i' j w x [?|[?|?]]%poss_erase; done.
    + destruct Hfd. by constructor.
    + intros a. rewrite Hl. symmetry. apply look_erase. intros q. apply Hb.
  - by exists m, f.
  - destruct Hx as (m0&f0&Hl&->&Hf). simpl in Hf. subst f. by apply begun_ok.
Qed.
Lemma looking_cut s m f c : looking s m f → cut f c → CI c ∧ CR c s.
Proof.
  intros (lg&i&n&HF&Hg&Hd&Hq&Hfd&Hl) Hc.
  assert (gaps lg i n c) as Hgc by (eapply gaps_sub; [|done]; intros p i' j w b; by apply cut_poss).
  split; [by eapply image_CI|]. eapply image_CR; [done..|]. intros a. by rewrite Hl, (d_mp _ _ _ _ _ Hfd).
Qed.
Lemma begun_cut s m f c : looking s m f → cut (says_so m f) c → CI c ∧ CR c s.
Proof.
  intros Hl Hc. pose proof Hl as (lg&i&n&HF&Hg&Hd&Hq&Hfd&Hls). pose proof Hc as (Hp&Hst&Hr&Hrq&k&Hk&Hdl&Hdd). simpl in *.
  rewrite app_length in Hk. simpl in Hk. destruct (decide (k = dd f)) as [->|].
  - apply (looking_cut s m f); [done|]. split_and!; try done. exists (dd f). split_and!; [lia|lia| |done].
    by rewrite Hdl, take_app_le by lia.
  - assert (k = S (dd f)) as -> by lia.
    rewrite take_ge in Hdl by (rewrite app_length; simpl; lia).
    rewrite (d_fn _ _ _ _ _ Hfd), (d_mi _ _ _ _ _ Hfd) in Hdl.
    destruct (fok_begin lg i n f (prs m) c) as [HF2 Hg2]; try done.
    + apply Hfd.
    + by destruct Hr as [|Hr]; [|rewrite Hq in Hr].
    + rewrite Hdd, Hdl, app_length. simpl. lia.
    + assert (dd c = length (dl c)) as Hdc by (rewrite Hdd, Hdl, app_length; simpl; lia).
      split; [split; [by split_and!|by exists (take n lg), (S i), n]|].
      intros m2 Hm2 a. destruct (recover_found _ _ _ _ _ HF2 Hg2 Hdc Hm2) as [_ _ _ _ Hmp2 _ _ _ _ _ _].
      rewrite Hmp2, mapat_take, Hls, (d_mp _ _ _ _ _ Hfd) by done. destruct (mapat lg n a) as [p|] eqn:E; [|done].
      simpl. destruct (Hp p) as [->|Hx]; [done|]. destruct (f_named _ _ _ _ HF a p E) as [_ Hs]. by eapply Hs in Hx.
Qed.
Lemma mount_cut s p f c : at_mount s (p, f) → cut f c → CI c ∧ CR c s.
Proof.
  intros Hp Hc. destruct p as [o' m|m|m|m|m|m]; simpl in Hp; try done.
  - destruct Hp as [HR HA]. exact (cut_idle _ _ _ _ HR HA Hc).
  - exact (looking_cut _ _ _ _ Hp Hc).
  - destruct Hp as (m0&f0&Hl&_&Hf). simpl in Hf. subst f. exact (begun_cut _ _ _ _ Hl Hc).
Qed.
Lemma at_menter c s p : CI c → CR c s → menter c p → at_mount s (p, c).
Proof.
  intros ((Hst&Hq&Hd)&lg&i&n&HF&Hg) HC (m&Hm&->).
  exists lg, i, n. split_and!; try done; [by apply recover_found|]. by apply HC.
Qed.
(** Every image has a disk. *)
Lemma CR_of c : CI c → ∃ s, CR c s.
Proof.
  intros (Hd&lg&i&n&HF&Hg). exists (λ a, look (pg c) (mapat lg n a) a). intros m Hm a.
  destruct (recover_found _ _ _ _ _ HF Hg (proj2 (proj2 Hd)) Hm) as [_ _ _ _ Hmp _ _ _ _ _ _]. by rewrite Hmp.
Qed.

Lemma new_fok f : new f → definite f ∧ fok [] 0 0 f ∧ gaps [] 0 0 f.
Proof.
  intros (Hp&Hs&Hr&Hq&Hl&Hd). split_and!.
  - split_and!; [done|done|by rewrite Hl, Hd].
  - constructor; rewrite ?Hr, ?Hq, ?Hl, ?Hd; simpl; try done; [lia|..].
    + intros [|j] d [= <-]. simpl. split; [lia|]. apply run_none.
    + split; [rewrite Hd; simpl; lia|]. intros a. exists 0. rewrite Hl, Hd. simpl. split; [lia|done].
    + intros [|j] d Hj [= <-]. done.
    + intros p i' j w b [Hx|Hx]; [by symmetry in Hx; apply Hp in Hx|by eapply Hs in Hx].
    + by left.
  - intros j p w _ He. done.
Qed.

(** ** The theorems *)
Theorem log_correct : per_operation zero inside bound cut enter step done refused menter (read zero) new AR CR RI CI.
Proof.
  split_and!; [intros o; apply op_by_points with (P := λ t p f, at_pc o t (p, f))
    |apply mount_by_points with (P := λ s p f, at_mount s (p, f))|constructor].
  - intros m f _. exists (disk_of m f). apply AR_of.
  - intros m f t p HR HA ->. done.
  - intros t p f p' f' Hp Hs. by eapply at_step.
  - intros t p f m Hp ->. by apply Hp.
  - intros t p f m Hp ->. by apply Hp.
  - intros t p f c. apply at_cut.
  - apply CR_of.
  - apply at_menter.
  - intros s p f p' f' Hp Hs. by eapply mount_step.
  - intros s p f m Hp ->. by apply Hp.
  - intros s p f c. apply mount_cut.
  - intros m f t a d HR (Hv&_&_) _ ->. by rewrite Hv.
  - intros m f t c HR HA Hc. by destruct (cut_idle _ _ _ _ HR HA Hc).
  - intros m f c HR Hc. by destruct (cut_idle _ _ _ _ HR (AR_of m f) Hc).
  - intros f Hn m Hm a. destruct (new_fok f Hn) as (Hd&HF&Hg).
    destruct (recover_found _ _ _ _ _ HF Hg (proj2 (proj2 Hd)) Hm) as [_ _ _ _ Hmp _ _ _ _ _ _]. by rewrite Hmp.
  - intros f Hn. destruct (new_fok f Hn) as (Hd&HF&Hg). split; [done|]. by exists [], 0, 0.
Qed.
(** Behavioural correctness of the log: reads, cuts and recoveries as the specification has them. *)
Theorem log_behaves E x : itrace inside cut enter step done refused fails menter (read zero) new E x →
  ∃ y, strace zero inside bound E y.
Proof. intros HE. destruct (behaves _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ E x log_correct HE) as (y&Hy&_). by exists y. Qed.
(** And so its snapshot consistency. *)
Theorem log_snapshot E x : itrace inside cut enter step done refused fails menter (read zero) new E x →
  consistent zero E.
Proof. intros HE. destruct (log_behaves E x HE) as [y Hy]. by eapply snapshot. Qed.
(** Collection is safe: whatever is moved and erased within an operation changes neither what is
    read nor what a cut leads back to. *)
Theorem collection_safe m f m' f' : RI m f → inner m f m' f' →
  (∀ a, reads m' f' a = reads m f a) ∧
  ∀ c m2, cut f' c → recover c m2 → ∀ a, look (pg c) (mp m2 a) a = look (pg f) (fm m a) a.
Proof.
  intros HR Hi. destruct (inner_ok _ _ _ _ Hi HR) as (HR'&Hr&Hl&_). split; [done|]. intros c m2 Hc Hm2 a.
  destruct (cut_idle _ _ _ _ HR' (AR_of m' f') Hc) as [_ HC]. rewrite <-Hl. symmetry. by apply (HC m2).
Qed.
End ops.
