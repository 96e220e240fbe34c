(** Nothing that a cut may leave is overlooked. The checker's disk is the model's, which lets a
    checkpoint's home writes begin and end together. Here is the device as the trace alone says
    it, write by write and flush by flush: while a trace is accepted, whatever a cut may leave of
    the device, the model's disk may leave. *)
From stdpp Require Import prelude functions list.
From Steadfast Require Import Disk Replay Journal Inv Recovery Run Refine CheckDevice Checker CheckScan CheckRecovery.

(** The device, and what had completed when each flush under way began. *)
Record device := Device { x_disk : jdisk; x_fly : tab jdisk }.
Definition dsync (sn d : jdisk) : jdisk :=
  Disk (λ b o, lift (don (home sn b o)) (home d b o)) (λ i, lift (don (slots sn i)) (slots d i))
    (λ i, lift (don (hdrs sn i)) (hdrs d i)).

(** A cell of the device and the model's: the same writes, the device's not less complete and
    not less durable. *)
Definition cle {A} (c m : cell A) : Prop :=
  (bad c = true → bad m = true) ∧ low c ≤ don c ∧ don c ≤ length (old c) ∧ don m ≤ don c ∧ low m ≤ low c ∧
  old c = old m ∧ cur c = cur m.
(** The model's write has begun, the device's has not. *)
Definition cwait {A} (c m : cell A) : Prop :=
  (bad c = true → bad m = true) ∧ low c ≤ don c ∧ don c = length (old c) ∧ don m ≤ don c ∧ low m ≤ low c ∧
  old m = old c ++ [cur c].

Section cells.
Context {A : Type}.
Implicit Types (c m : cell A).
Lemma cle_poss c m w : cle c m → poss c w → poss m w.
Proof.
  intros (Hb&_&_&_&Hl&Ho&Hc) [->|[(i&Hi&Hw)|Hw]]; [rewrite Hc; apply poss_cur| |right; right; auto].
  right. left. exists i. rewrite <-Ho. split; [lia|done].
Qed.
Lemma cwait_poss c m w : cwait c m → poss c w → poss m w.
Proof.
  intros (Hb&H1&H2&H3&Hl&Ho) [->|[(i&Hi&Hw)|Hw]]; [| |right; right; auto]; right; left.
  - exists (length (old c)). rewrite Ho. split; [lia|]. by rewrite list_lookup_middle.
  - exists i. rewrite Ho. split; [lia|]. by apply lookup_app_l_Some.
Qed.
Lemma cle_begin g c m v : cle c m → cle (begin g c v) (begin g m v).
Proof.
  intros (Hb&H1&H2&H3&H4&Ho&Hc). unfold cle. simpl. rewrite Ho, Hc. split_and!; try done; [|rewrite <-Ho, app_length; lia].
  intros [H|H]%orb_true_iff; apply orb_true_iff; [left; auto|right].
  apply negb_true_iff, bool_decide_eq_false in H. apply negb_true_iff, bool_decide_eq_false. rewrite <-Ho in *. lia.
Qed.
Lemma cle_finish c m : cle c m → cle (finish c) (finish m).
Proof. intros (?&?&?&?&?&Ho&?). unfold cle. simpl. rewrite Ho. split_and!; try done; rewrite <-?Ho; lia. Qed.
Lemma cle_finish_l c m : cle c m → cle (finish c) m ∧ don (finish c) = length (old (finish c)).
Proof. intros (?&?&?&?&?&Ho&?). unfold cle. simpl. split_and!; try done; lia. Qed.
Lemma cle_finish_r c m : cle c m → don c = length (old c) → cle c (finish m).
Proof. intros (?&?&?&?&?&Ho&?) Hd. unfold cle. simpl. rewrite <-Ho. split_and!; try done; lia. Qed.
Lemma cle_lift n n' c m : cle c m → n' ≤ n → n ≤ don c → cle (lift n c) (lift n' m).
Proof. intros (?&?&?&?&?&?&?) ??. unfold cle. simpl. split_and!; try done; lia. Qed.
Lemma cwait_lift n n' c m : cwait c m → n' ≤ n → n ≤ don c → cwait (lift n c) (lift n' m).
Proof. intros (?&?&?&?&?&?) ??. unfold cwait. simpl. split_and!; try done; lia. Qed.
Lemma cwait_start c m v : cle c m → don m = length (old m) → cwait c (begin [] m v).
Proof.
  intros (?&?&?&?&?&Ho&Hc) Hd. unfold cwait. simpl. rewrite <-Ho, <-Hc in *. split_and!; try done; try lia.
  intros. apply orb_true_iff. auto.
Qed.
Lemma cwait_begin c m : cwait c m → cle (begin [] c (cur m)) m.
Proof.
  intros (Hb&?&Hd&?&?&Ho). unfold cle. simpl. rewrite Ho. rewrite bool_decide_eq_true_2 by done. simpl.
  rewrite orb_false_r, app_length. split_and!; try done; lia.
Qed.
End cells.

Section outcomes.
Context (N : nat) (d0 : nat → option (sector → nat)).

(** What an event of the trace does to the device. *)
Definition on_device (c : run) (e : ev) (x : device) : device :=
  let d := x_disk x in let fl := x_fly x in
  match e with
  | EData b v | EHome b v => Device (Disk (wrm (one b (oget v)) (home d)) (slots d) (hdrs d)) fl
  | EDataDone b | EHomeDone b => Device (Disk (fim (one b (λ _, 0)) (home d)) (slots d) (hdrs d)) fl
  | ELay ep sq pos len f l => Device (Disk (home d) (wrs N (Rec ep sq pos len f (effs l)) (slots d)) (hdrs d)) fl
  | ELayDone => match recs c !! acked c with
      | Some r => Device (Disk (home d) (fis N r (slots d)) (hdrs d)) fl
      | None => x
      end
  | EFlush f => Device d ((f, d) :: fl)
  | EFlushed f => match tfind fl f with Some sn => Device (dsync sn d) (tdrop f fl) | None => x end
  | ETail gen ep tl pos f => Device (Disk (home d) (slots d) (wrh (negb (nh (vl c))) (Hdr gen ep ep tl pos f None) (hdrs d))) fl
  | ETailDone => Device (Disk (home d) (slots d) (fih (negb (nh (vl c))) (hdrs d))) fl
  | EAck | ERelease _ | ERead _ _ | ERound | ERoundEnd => x
  end.
Fixpoint on_devices (c : run) (l : list ev) (x : device) : device :=
  match l with
  | [] => x
  | e :: l => match exec N d0 c e with Ok c' => on_devices c' l (on_device c e x) | No _ => x end
  end.

(** Where the checkpoint's home write of a block is. *)
Definition stage (c : run) (b : nat) : option phase := match kp (vl c) with KW _ _ => tfind (todo c) b | _ => None end.
Definition hle (s : option phase) (c m : cell nat) : Prop :=
  match s with
  | Some Waiting => cwait c m
  | Some Complete => cle c m ∧ don c = length (old c)
  | _ => cle c m
  end.
Definition snle (p q : jdisk) : Prop :=
  (∀ b o, don (home p b o) ≤ don (home q b o)) ∧ (∀ i, don (slots p i) ≤ don (slots q i)) ∧
  (∀ i, don (hdrs p i) ≤ don (hdrs q i)).
Record K (c : run) (x : device) : Prop := {
  k_home : ∀ b o, hle (stage c b) (home (x_disk x) b o) (home (abs (dsk c)) b o);
  k_slots : ∀ i, cle (slots (x_disk x) i) (slots (abs (dsk c)) i);
  k_hdrs : ∀ i, cle (hdrs (x_disk x) i) (hdrs (abs (dsk c)) i);
  k_fly : Forall2 (λ p q, p.1 = q.1 ∧ snle (abs q.2) p.2 ∧ snle p.2 (x_disk x)) (x_fly x) (fly c);
  k_todo : ∀ u img b, kp (vl c) = KW u img → tfind (todo c) b ≠ None → img b ≠ None }.

Lemma hle_poss s c m w : hle s c m → poss c w → poss m w.
Proof. destruct s as [[]|]; simpl; eauto using cwait_poss, cle_poss. intros []. eauto using cle_poss. Qed.
Lemma hle_don s c m : hle s c m → don m ≤ don c ∧ don c ≤ length (old c).
Proof. destruct s as [[]|]; simpl; unfold cle, cwait; intuition lia. Qed.
Lemma snle_trans p q r : snle p q → snle q r → snle p r.
Proof. intros (?&?&?) (?&?&?). split_and!; intros; etrans; eauto. Qed.
Lemma snle_refl p : snle p p.
Proof. by split_and!. Qed.
Lemma fly_more (d d' : jdisk) l l' : snle d d' →
  Forall2 (λ p q : nat * _, p.1 = q.1 ∧ snle (abs q.2) p.2 ∧ snle p.2 d) l l' →
  Forall2 (λ p q : nat * _, p.1 = q.1 ∧ snle (abs q.2) p.2 ∧ snle p.2 d') l l'.
Proof. intros H Hl. eapply Forall2_impl; [done|]. intros p q (?&?&?). split_and!; try done. by eapply snle_trans. Qed.
Lemma fly_find (P : jdisk → tdisk → Prop) l l' f sn :
  Forall2 (λ p q : nat * _, p.1 = q.1 ∧ P p.2 q.2) l l' → tfind l' f = Some sn → ∃ s, tfind l f = Some s ∧ P s sn.
Proof.
  induction 1 as [|[a s] [b q] l l' [E HP] H IH]; simpl in *; [done|]. subst b.
  destruct (a =? f); [intros [= ->]; eauto|done].
Qed.
Lemma fly_drop (P : jdisk → tdisk → Prop) l l' f :
  Forall2 (λ p q : nat * _, p.1 = q.1 ∧ P p.2 q.2) l l' →
  Forall2 (λ p q : nat * _, p.1 = q.1 ∧ P p.2 q.2) (tdrop f l) (tdrop f l').
Proof.
  induction 1 as [|[a s] [b q] l l' [E HP] H IH]; simpl in *; [constructor|]. subst b.
  destruct (a =? f); simpl; [done|]. by constructor.
Qed.

(** The device's cells after a change of it, against the model's after the same change. *)
Lemma snle_wrm img d : snle d (Disk (wrm img (home d)) (slots d) (hdrs d)).
Proof. split_and!; intros; simpl; try done. unfold wrm. by destruct (img b). Qed.
Lemma snle_wrs r d : snle d (Disk (home d) (wrs N r (slots d)) (hdrs d)).
Proof. split_and!; intros; simpl; try done. unfold wrs. by destruct (part _ _ _ _). Qed.
Lemma snle_wrh i h d : snle d (Disk (home d) (slots d) (wrh i h (hdrs d))).
Proof. split_and!; intros; simpl; try done. unfold wrh. by case_decide. Qed.
Lemma snle_fim img d : (∀ b o, don (home d b o) ≤ length (old (home d b o))) → snle d (Disk (fim img (home d)) (slots d) (hdrs d)).
Proof. intros. split_and!; intros; simpl; try done. unfold fim. destruct (img b); simpl; auto. Qed.
Lemma snle_fis r d : (∀ i, don (slots d i) ≤ length (old (slots d i))) → snle d (Disk (home d) (fis N r (slots d)) (hdrs d)).
Proof. intros. split_and!; intros; simpl; try done. unfold fis. destruct (part _ _ _ _); simpl; auto. Qed.
Lemma snle_fih i d : (∀ i, don (hdrs d i) ≤ length (old (hdrs d i))) → snle d (Disk (home d) (slots d) (fih i (hdrs d))).
Proof. intros. split_and!; intros; simpl; try done. unfold fih. case_decide; simpl; auto. Qed.

Lemma abs_tsync_eq sn t : dle (abs sn) (abs t) → deq (dsync (abs sn) (abs t)) (abs (tsync sn t)).
Proof.
  intros (H1&H2&H3). split_and!; intros; simpl.
  - destruct (tmem (t_home t) b) eqn:E.
    + rewrite tget_tmap by done. by rewrite oget_oeach.
    + specialize (H1 b o). simpl in H1. rewrite (tget_none _ (t_home t)) in * by done.
      rewrite (tget_none _ (tmap _ _)) by (by rewrite tmem_tmap). rewrite oget_x0 in *. simpl in H1.
      unfold lift. simpl. by assert (don (oget (tget x0 (t_home sn) b) o) = 0) as -> by lia.
  - destruct (tmem (t_slots t) i) eqn:E.
    + by rewrite tget_tmap by done.
    + specialize (H2 i). simpl in H2. rewrite (tget_none _ (t_slots t)) in * by done.
      rewrite (tget_none _ (tmap _ _)) by (by rewrite tmem_tmap). simpl in H2.
      unfold lift. simpl. by assert (don (tget s0 (t_slots sn) i) = 0) as -> by lia.
  - by destruct i.
Qed.

(** A block whose home write a checkpoint has chosen is not written around the log. *)
Lemma image_taken c x u img b : K c x → MI 0 N d0 (model c) → kp (vl c) = KW u img → tfind (todo c) b ≠ None →
  taken (stt (vl c) b) ∧ ∀ y, img b = Some y → ∀ o, cur (home (abs (dsk c)) b o) = y o.
Proof.
  intros HK [_ HM] Hk Ht. pose proof (k_todo _ _ HK _ _ _ Hk Ht) as Hi. destruct HM. simpl in *. rewrite Hk in i_kp.
  destruct i_kp as (_&_&Hr). destruct (img b) as [y|] eqn:E; [|done]. destruct (Hr b y E) as (Ha&_&Hc). split; [done|].
  intros ? [= <-] o. apply Hc.
Qed.
Lemma stage_free c x b : K c x → MI 0 N d0 (model c) → stt (vl c) b = Avail ∨ stt (vl c) b = Claimed → stage c b = None.
Proof.
  intros HK HM Hs. unfold stage. destruct (kp (vl c)) eqn:Ek; try done. destruct (tfind (todo c) b) eqn:Et; [|done].
  destruct (image_taken c x _ _ b HK HM Ek) as [[H1 H2] _]; [by rewrite Et|]. by destruct Hs.
Qed.
Lemma K_homed c x : K c x → todo_ok c → firstof (λ _ x, negb (complete x)) (todo c) = None → K (homed c) x.
Proof.
  intros HK Ht Hf. unfold homed. destruct (kp (vl c)) as [|u img| | |] eqn:Ek; try done. destruct HK as [Hh Hs Hd Hfl Htd].
  destruct (abs_tfim img (dsk c)) as (E1&E2&E3). constructor; simpl; try done.
  - intros b o. unfold stage. simpl. specialize (Hh b o). unfold stage in Hh. rewrite Ek in Hh.
    change (hle None (home (x_disk x) b o) (home (abs (tfim img (dsk c))) b o)). rewrite <-E1. simpl. unfold fim.
    assert (img b ≠ None → tfind (todo c) b = Some Complete) as Hc.
    { intros Hi. pose proof (Ht _ _ _ Ek Hi) as Hin. destruct (tfind (todo c) b) as [y|] eqn:E.
      - apply tfind_in in E. pose proof (firstof_none _ _ Hf _ _ E) as Hy. simpl in Hy. by destruct y.
      - exfalso. clear -E Hin. induction (todo c) as [|[a y] l IH]; csimpl in *; [by apply elem_of_nil in Hin|].
        destruct (a =? b) eqn:Eb; [done|]. apply elem_of_cons in Hin as [->|Hin]; [by rewrite Nat.eqb_refl in Eb|auto]. }
    destruct (img b) as [y|] eqn:Ei.
    + rewrite Hc in Hh by done. destruct Hh. by apply cle_finish_r.
    + destruct (tfind (todo c) b) as [p|] eqn:E; [|done]. exfalso. eapply Htd; [done|by rewrite E|done].
  - intros i. change (cle (slots (x_disk x) i) (slots (abs (tfim img (dsk c))) i)). rewrite <-E2. apply Hs.
Qed.

Lemma K_exec c x e c' : K c x → J c → MI 0 N d0 (model c) → MI 0 N d0 (model c') →
  exec N d0 c e = Ok c' → K c' (on_device c e x).
Proof.
  intros HK Hj HM HM' Hx. pose proof HK as [Hh Hs Hd Hfl Htd]. pose proof Hj as [_ Hnm Hfly Htk].
  assert (∀ b o, don (home (x_disk x) b o) ≤ length (old (home (x_disk x) b o))) as Hwh by (intros; eapply hle_don, Hh).
  assert (∀ i, don (slots (x_disk x) i) ≤ length (old (slots (x_disk x) i))) as Hws by (intros; apply (Hs i)).
  assert (∀ i, don (hdrs (x_disk x) i) ≤ length (old (hdrs (x_disk x) i))) as Hwd by (intros; apply (Hd i)).
  destruct x as [X fx]. destruct c as [t R a v td fl]. simpl in *.
  destruct e as [b y|b|ep sq pos len fd l| |f|f| |b|b y| |b y|b|gen ep tl pos fd| |]; simpl in *.
  - destruct (stt v b) eqn:Es; try done. injection Hx as <-.
    pose proof (stage_free _ _ b HK HM (or_introl Es)) as Hst.
    destruct (abs_twrm (one b (oget y)) (abs t) (tknow [b] [] t)) as (E1&E2&E3); [|apply abs_tknow|].
    { intros b' Hb'. unfold one. destruct (decide (b' = b)) as [->|]; [|done]. exfalso.
      apply Hb', knows_tknow. right. by left. }
    constructor; cbn [x_disk x_fly dsk vl todo fly home slots hdrs].
    + intros b' o. rewrite <-E1. cbn [home]. unfold wrm, one. change (stage _ b') with (stage (Rn t R a v td fl) b').
      destruct (decide (b' = b)) as [->|]; [|apply Hh]. rewrite Hst. apply cle_begin. specialize (Hh b o). by rewrite Hst in Hh.
    + intros i. rewrite <-E2. apply Hs.
    + intros i. rewrite <-E3. apply Hd.
    + eapply fly_more; [apply snle_wrm|done].
    + apply Htd.
  - destruct (stt v b) eqn:Es; try done. injection Hx as <-.
    pose proof (stage_free _ _ b HK HM (or_intror Es)) as Hst.
    destruct (abs_tfim (one b (λ _, 0)) t) as (E1&E2&E3).
    constructor; cbn [x_disk x_fly dsk vl todo fly home slots hdrs].
    + intros b' o. rewrite <-E1. cbn [home]. unfold fim, one. change (stage _ b') with (stage (Rn t R a v td fl) b').
      destruct (decide (b' = b)) as [->|]; [|apply Hh]. rewrite Hst. apply cle_finish. specialize (Hh b o). by rewrite Hst in Hh.
    + intros i. rewrite <-E2. apply Hs.
    + intros i. rewrite <-E3. apply Hd.
    + eapply fly_more; [by apply snle_fim|done].
    + apply Htd.
  - assert (∃ n, c' = Rn (twrs N (Rec ep sq pos len fd (effs l)) (tknow l.*1 ((λ j, (pos + j) `mod` N) <$> seq 0 len) t))
        (R ++ [Rec ep sq pos len fd (effs l)]) a
        (Vol (nh v) (hc v) (λ b, stat_after n (effs l b) (stt v b)) CW (kp v)) td fl) as (n&->).
    { exists (length R). repeat (case_match; try done). by injection Hx as <-. }
    set (r := Rec _ _ _ _ _ _) in *. destruct (abs_twrs N r t l.*1) as (E1&E2&E3).
    constructor; cbn [x_disk x_fly dsk vl todo fly home slots hdrs].
    + intros b' o. rewrite <-E1. apply Hh.
    + intros i. rewrite <-E2. cbn [slots]. unfold wrs. destruct (part _ _ _ _); [apply cle_begin|]; apply Hs.
    + intros i. rewrite <-E3. apply Hd.
    + eapply fly_more; [apply snle_wrs|done].
    + apply Htd.
  - destruct (cp v); try done. destruct (R !! a) as [r|] eqn:ER; [|done]. injection Hx as <-.
    destruct (abs_tfis N r t) as (E1&E2&E3).
    constructor; cbn [x_disk x_fly dsk vl todo fly home slots hdrs].
    + intros b' o. rewrite <-E1. apply Hh.
    + intros i. rewrite <-E2. cbn [slots]. unfold fis. destruct (part _ _ _ _); [apply cle_finish|]; apply Hs.
    + intros i. rewrite <-E3. apply Hd.
    + eapply fly_more; [by apply snle_fis|done].
    + apply Htd.
  - destruct (tmem fl f); [done|]. injection Hx as <-. constructor; try done. cbn [x_fly fly]. constructor; [|done].
    split_and!; [done| |apply snle_refl]. split_and!; intros; simpl; [eapply hle_don, Hh|apply (Hs i)|apply (Hd i)].
  - destruct (tfind fl f) as [sn|] eqn:Ef; [|done]. injection Hx as <-.
    destruct (fly_find (λ s sn, snle (abs sn) s ∧ snle s X) _ _ _ _ Hfl Ef) as (s&->&(L1&L2&L3)&(U1&U2&U3)).
    destruct (abs_tsync_eq sn t) as (E1&E2&E3); [by apply (Hfly f), tfind_in|].
    constructor; cbn [x_disk x_fly dsk vl todo fly].
    + intros b o. rewrite <-E1. change (stage _ b) with (stage (Rn t R a v td fl) b). cbn [home dsync].
      specialize (Hh b o). destruct (stage _ b) as [[]|]; simpl in *; [by apply cwait_lift|by apply cle_lift| |by apply cle_lift].
      destruct Hh. split; [by apply cle_lift|done].
    + intros i. rewrite <-E2. cbn [slots dsync]. apply cle_lift; [apply Hs|apply L2|apply U2].
    + intros i. rewrite <-E3. cbn [hdrs dsync]. apply cle_lift; [apply Hd|apply L3|apply U3].
    + eapply fly_more; [|by apply (fly_drop (λ s sn, snle (abs sn) s ∧ snle s X))]. by split_and!.
    + apply Htd.
  - destruct (cp v); try done. destruct (flushedb _ _); [|done]. by injection Hx as <-.
  - destruct (kp v) eqn:Ek; try done. destruct (stt v b); try done. destruct (_ || _); [|done]. injection Hx as <-.
    constructor; simpl; try done. intros b' o. specialize (Hh b' o). unfold stage in *. simpl in *. by rewrite Ek in Hh.
  - destruct (stt v b); try done. destruct (differ _ _); [done|]. by injection Hx as <-.
  - destruct (kp v) eqn:Ek; try done. destruct (h_tail (hc v) <? a) eqn:Ea; [|done].
    set (img := kimg 0 d0 R (h_tail (hc v)) a) in *. set (bs := List.filter _ _) in *.
    set (c1 := Rn (twrm img t) R a _ _ fl) in *.
    assert (∀ b, img b ≠ None → b ∈ bs) as Hbs.
    { intros b Hb. apply elem_of_list_In, filter_In. destruct (img b) eqn:Ei; [|done]. split; [|done].
      apply elem_of_list_In, tmem_keys. destruct (tmem (t_home t) b) eqn:Em; [done|].
      exfalso. apply Hb. rewrite <-Ei. apply (kimg_named d0 (Rn t R a v td fl)); [done|]. unfold knows. simpl. by rewrite Em. }
    assert (∀ b, b ∈ bs → img b ≠ None) as Hbs'.
    { intros b Hb. apply elem_of_list_In, filter_In in Hb as [_ Hb]. by destruct (img b). }
    destruct (abs_twrm img (abs t) t) as (E1&E2&E3); [|by split_and!|].
    { intros b. apply (kimg_named d0 (Rn t R a v td fl)). done. }
    assert (K c1 (Device X fx)) as HK1.
    { constructor; cbn [x_disk x_fly dsk vl todo fly c1].
      - intros b o. rewrite <-E1. cbn [home]. unfold stage, c1. cbn [vl kp todo]. rewrite tfind_const. unfold wrm.
        specialize (Hh b o). unfold stage in Hh. simpl in Hh. rewrite Ek in Hh. destruct (existsb _ bs) eqn:Eb.
        + apply existsb_in in Eb. pose proof (Hbs' _ Eb) as Hi. destruct (img b) as [y|] eqn:Ei; [|done].
          apply cwait_start; [exact Hh|]. assert (c' = c1) as -> by (destruct bs; [by apply elem_of_nil in Eb|by injection Hx as <-]).
          destruct HM as [_ HM], HM' as [_ HM']. simpl in HM, HM'. destruct HM, HM'. simpl in i_kp0.
          destruct i_kp0 as (_&_&Hr). destruct (Hr b y Ei) as ([_ Hc]&_). destruct (i_busy b o) as (_&[?|[?|(u&i&Hk&_)]]); [done|done|].
          by rewrite Ek in Hk.
        + destruct (img b) eqn:Ei; [|exact Hh]. assert (b ∈ bs) as Hin by (apply Hbs; by rewrite Ei).
          apply existsb_in in Hin. by rewrite Hin in Eb.
      - intros i. rewrite <-E2. apply Hs.
      - intros i. rewrite <-E3. apply Hd.
      - done.
      - intros u i b [= <- <-]. rewrite tfind_const. destruct (existsb _ bs) eqn:Eb; [|done]. intros _.
        by apply Hbs', existsb_in. }
    destruct bs as [|b0 bs'] eqn:Ebs; injection Hx as <-; [|done].
    apply K_homed; [done| |done]. intros u i b [= <- <-] Hb. apply Hbs in Hb. by apply elem_of_nil in Hb.
  - destruct (kp v) as [|u img| | |] eqn:Ek; try done. destruct (tfind td b) as [[]|] eqn:Et; try done.
    destruct (img b) as [z|] eqn:Ei; [|done]. destruct (differ _ _) eqn:Ed; [done|]. injection Hx as <-.
    destruct (image_taken _ _ u img b HK HM Ek) as [_ Hz]; [simpl; by rewrite Et|]. specialize (Hz z Ei). simpl in Hz.
    constructor; cbn [x_disk x_fly dsk vl todo fly home slots hdrs]; try done.
    + intros b' o. specialize (Hh b' o). unfold stage in *. cbn [vl todo] in *. rewrite Ek in *. rewrite tfind_tput.
      unfold wrm, one. destruct (decide (b' = b)) as [->|Hne].
      * rewrite Et in *. rewrite Nat.eqb_refl. simpl. rewrite (differ_none _ _ Ed o), <-Hz. by apply cwait_begin.
      * destruct (tfind td b') as [p|]; [|done]. destruct (b' =? b) eqn:E; [by apply Nat.eqb_eq in E|done].
    + eapply fly_more; [apply snle_wrm|done].
    + intros u' i b' Hk. rewrite tfind_tput. intros H. rewrite Ek in Hk. apply (Htd u' i b' Hk). by destruct (tfind td b').
  - destruct (kp v) as [|u img| | |] eqn:Ek; try done. destruct (tfind td b) as [[]|] eqn:Et; try done.
    set (c1 := Rn t R a v (tput b Complete td) fl) in *.
    assert (K c1 (Device (Disk (fim (one b (λ _, 0)) (home X)) (slots X) (hdrs X)) fx)) as HK1.
    { constructor; cbn [x_disk x_fly dsk vl todo fly home slots hdrs c1]; try done.
      - intros b' o. specialize (Hh b' o). unfold stage, c1 in *. cbn [vl todo] in *. rewrite Ek in *. rewrite tfind_tput.
        unfold fim, one. destruct (decide (b' = b)) as [->|Hne].
        + rewrite Et in *. rewrite Nat.eqb_refl. by apply cle_finish_l.
        + destruct (tfind td b') as [p|]; [|done]. destruct (b' =? b) eqn:E; [by apply Nat.eqb_eq in E|done].
      - eapply fly_more; [by apply snle_fim|done].
      - intros u' i b' Hk. rewrite tfind_tput. intros H. rewrite Ek in Hk. apply (Htd u' i b' Hk). by destruct (tfind td b'). }
    destruct (firstof _ _) eqn:Ef; injection Hx as <-; [done|]. apply K_homed; [done| |done].
    intros u' i b'. unfold c1. cbn [vl todo]. rewrite todo_keys. apply Htk.
  - destruct (kp v) as [| |u img sn| |] eqn:Ek; try done; [by destruct (firstof _ _)|].
    destruct (flushedb sn t); simpl in Hx; [|done].
    destruct (gen =? _) eqn:F1; simpl in Hx; [|done]. destruct (ep =? _) eqn:F2; simpl in Hx; [|done].
    destruct (tl =? _) eqn:F3; simpl in Hx; [|done]. destruct (pos =? _) eqn:F4; simpl in Hx; [|done].
    destruct (fd =? _) eqn:F5; simpl in Hx; [|done]. injection Hx as <-.
    apply Nat.eqb_eq in F1 as ->, F2 as ->, F3 as ->, F4 as ->, F5 as ->.
    change (Hdr _ _ _ _ _ _ _) with (hnew v R u).
    destruct (abs_twrh (negb (nh v)) (hnew v R u) t) as (E1&E2&E3).
    constructor; cbn [x_disk x_fly dsk vl todo fly home slots hdrs].
    + intros b o. rewrite <-E1. specialize (Hh b o). unfold stage in *. simpl in *. by rewrite Ek in Hh.
    + intros i. rewrite <-E2. apply Hs.
    + intros i. rewrite <-E3. cbn [hdrs]. unfold wrh. case_decide; [apply cle_begin|]; apply Hd.
    + eapply fly_more; [apply snle_wrh|done].
    + done.
  - destruct (kp v) eqn:Ek; try done. injection Hx as <-.
    destruct (abs_tfih (negb (nh v)) t) as (E1&E2&E3).
    constructor; cbn [x_disk x_fly dsk vl todo fly home slots hdrs].
    + intros b o. rewrite <-E1. specialize (Hh b o). unfold stage in *. simpl in *. by rewrite Ek in Hh.
    + intros i. rewrite <-E2. apply Hs.
    + intros i. rewrite <-E3. cbn [hdrs]. unfold fih. case_decide; [apply cle_finish|]; apply Hd.
    + eapply fly_more; [by apply snle_fih|done].
    + done.
  - destruct (kp v) eqn:Ek; try done. destruct (flushedb _ _); [|done]. injection Hx as <-.
    constructor; simpl; try done. intros b' o. specialize (Hh b' o). unfold stage in *. simpl in *. by rewrite Ek in Hh.
Qed.

Lemma K_execs l c x c' : K c x → J c → MI 0 N d0 (model c) → execs N d0 c l = Ok c' → K c' (on_devices c l x).
Proof.
  revert c x. induction l as [|e l IH]; intros c x HK Hj HM; simpl; [by intros [= <-]|].
  destruct (exec N d0 c e) as [c1|] eqn:E; [|done]. intros Hx.
  assert (MI 0 N d0 (model c1)) as HM1.
  { destruct (exec_steps N d0 _ _ _ Hj E) as [(ls&Hs&_) _]. by eapply steps_MI. }
  apply IH; [by eapply K_exec|by eapply exec_J|done|done].
Qed.
Lemma K_start l : K (start l) (Device (abs (dsk (start l))) []).
Proof.
  assert (∀ A (v : A), cle (Cell [] v 0 0 false) (Cell [] v 0 0 false)) as Hc by (intros; unfold cle; simpl; split_and!; done || lia).
  constructor; try done.
  - intros b o. change (cle (oget (tget x0 (t_home (dsk (start l))) b) o) (oget (tget x0 (t_home (dsk (start l))) b) o)).
    rewrite start_home. destruct (tfind l b); [rewrite oget_oof|rewrite oget_x0]; apply Hc.
  - intros []; apply Hc.
  - constructor.
Qed.
End outcomes.

(** The device after the events of a trace that are accepted. *)
Definition device_after (N : nat) (l0 : tab (oct nat)) (l : list ev) : jdisk :=
  x_disk (on_devices N (d0_of l0) (start l0) l (Device (abs (dsk (start l0))) [])).
(** Whatever a cut may leave of it, the model's disk may leave ... *)
Theorem outcomes N l0 l c' d' :
  execs N (d0_of l0) (start l0) l = Ok c' → dsurvives (device_after N l0 l) d' → dsurvives (abs (dsk c')) d'.
Proof.
  intros Hx (S1&S2&S3). destruct (start_init l0) as [Hi Hj].
  destruct (K_execs N (d0_of l0) _ _ _ _ (K_start l0) Hj (init_MI _ N _ _ Hi) Hx) as [Hh Hs Hd _ _].
  split_and!; intros; [destruct (S1 b o) as [? H]|destruct (S2 i) as [? H]|destruct (S3 i) as [? H]]; (split; [done|]); intros v Hv.
  - by eapply hle_poss, H.
  - by eapply cle_poss, H.
  - by eapply cle_poss, H.
Qed.
(** ... so that any recovery of the model, begun on what was left, cut as often as one likes, opens
    with everything that was acknowledged before the cut, and with a prefix of the records. *)
Theorem cut_outcomes N l0 l c' d' ls k s2 s3 :
  execs N (d0_of l0) (start l0) l = Ok c' → dsurvives (device_after N l0 l) d' → Forall quiet_label ls →
  steps 0 N (d0_of l0) ls (St d' (recs c') (acked c') MScan) s2 → step 0 N (d0_of l0) (Open k) s2 s3 →
  acked c' ≤ k ≤ length (recs c') ∧ rs s3 = take k (recs c').
Proof.
  intros Hx Hs Hq Hl Ho. pose proof (outcomes _ _ _ _ _ Hx Hs) as Hs'.
  eapply (accepted_cut N (d0_of l0) l [] (start l0) c' c' ls k s2 s3); try done; [apply start_init|by rewrite app_nil_r|].
  econstructor; [by apply s_crash|done].
Qed.

(** ** In a recovery *)
(** The effect of an event on the device; [c'] is the checker's state after it, which knows the older
    header's place. After a cut, the survivors give the state. *)
Section recovery.
Context (N : nat).
Definition older (c : rcv) : bool := match r_at c with PVerd i _ _ | PFresh i _ _ => negb i | _ => false end.
Definition replayed (c : rcv) : jimg :=
  λ b, match r_at c with PRepl _ _ _ todo => (match tfind todo b with Some _ => Some (λ _, 0) | None => None end) | _ => None end.
Definition on_recovery (e : cutev) (c' : rcv) (x : device) : device :=
  let d := x_disk x in let fl := x_fly x in
  match e with
  | VSurvived _ _ | VSlot _ _ | VHeader _ _ | VAgain => Device (abs (r_dsk c')) []
  | VRecover | VOpen _ => x
  | VFlush f => Device d ((f, d) :: fl)
  | VFlushed f => match tfind fl f with Some sn => Device (dsync sn d) (tdrop f fl) | None => x end
  | VVerdict gen ep rep tl pos en f => Device (Disk (home d) (slots d) (wrh (older c') (Hdr gen ep rep tl pos f (Some en)) (hdrs d))) fl
  | VFresh gen ep tl pos f => Device (Disk (home d) (slots d) (wrh (older c') (Hdr gen ep ep tl pos f None) (hdrs d))) fl
  | VVerdictDone | VFreshDone => Device (Disk (home d) (slots d) (fih (older c') (hdrs d))) fl
  | VReplay b v => Device (Disk (wrm (one b (oget v)) (home d)) (slots d) (hdrs d)) fl
  | VReplayDone => Device (Disk (fim (replayed c') (home d)) (slots d) (hdrs d)) fl
  end.
Fixpoint on_recoveries (c : rcv) (l : list cutev) (x : device) : device :=
  match l with
  | [] => x
  | e :: l => match rexec N c e with Ok c' => on_recoveries c' l (on_recovery e c' x) | No _ => x end
  end.
(** The checker's tables are this device. *)
Definition grows (t t' : tdisk) : Prop :=
  (∀ b, tmem (t_home t) b = true → tmem (t_home t') b = true) ∧ (∀ i, tmem (t_slots t) i = true → tmem (t_slots t') i = true).
Record D (c : rcv) (x : device) : Prop := {
  d_disk : deq (x_disk x) (abs (r_dsk c));
  d_cut : r_at c = PCut → r_fly c = [];
  d_fly : Forall2 (λ p q, p.1 = q.1 ∧ (deq p.2 (abs q.2) ∧ grows q.2 (r_dsk c))) (x_fly x) (r_fly c) }.

Lemma deq_refl d : deq d d.
Proof. by split_and!. Qed.
Lemma deq_trans d1 d2 d3 : deq d1 d2 → deq d2 d3 → deq d1 d3.
Proof. intros (?&?&?) (?&?&?). split_and!; intros; etrans; eauto. Qed.
Lemma grows_trans t1 t2 t3 : grows t1 t2 → grows t2 t3 → grows t1 t3.
Proof. intros [??] [??]. split; auto. Qed.
Lemma grows_teach fh fs fd t : grows t (teach fh fs fd t).
Proof. split; intros; simpl; by rewrite tmem_tmap. Qed.
Lemma grows_tknow bs is t : grows t (tknow bs is t).
Proof. split; intros; simpl; apply tmem_tadds; auto. Qed.
Lemma deq_fim img d t : deq d (abs t) → deq (Disk (fim img (home d)) (slots d) (hdrs d)) (abs (tfim img t)).
Proof. intros (H1&H2&H3). eapply deq_trans; [|apply abs_tfim]. split_and!; simpl; try done. intros b o. unfold fim. by rewrite H1. Qed.
Lemma deq_wrh i h d t : deq d (abs t) → deq (Disk (home d) (slots d) (wrh i h (hdrs d))) (abs (twrh i h t)).
Proof. intros (H1&H2&H3). eapply deq_trans; [|apply abs_twrh]. split_and!; simpl; try done. intros j. unfold wrh. by rewrite H3. Qed.
Lemma deq_fih i d t : deq d (abs t) → deq (Disk (home d) (slots d) (fih i (hdrs d))) (abs (tfih i t)).
Proof. intros (H1&H2&H3). eapply deq_trans; [|apply abs_tfih]. split_and!; simpl; try done. intros j. unfold fih. by rewrite H3. Qed.
Lemma deq_sync s sn d t : deq s (abs sn) → grows sn t → deq d (abs t) → deq (dsync s d) (abs (tsync sn t)).
Proof.
  intros (S1&S2&S3) [G1 G2] (H1&H2&H3). split_and!; intros; simpl; rewrite ?S1, ?S2, ?S3, ?H1, ?H2, ?H3; simpl.
  - destruct (tmem (t_home t) b) eqn:E.
    + rewrite tget_tmap by done. by rewrite oget_oeach.
    + assert (tmem (t_home sn) b = false) as E' by (apply not_true_iff_false; intros ?%G1; congruence).
      by rewrite !tget_none, !oget_x0 by (by rewrite ?tmem_tmap).
  - destruct (tmem (t_slots t) i) eqn:E.
    + by rewrite tget_tmap by done.
    + assert (tmem (t_slots sn) i = false) as E' by (apply not_true_iff_false; intros ?%G2; congruence).
      by rewrite !tget_none by (by rewrite ?tmem_tmap).
  - by destruct i.
Qed.
Lemma D_more c c' x d : D c x → deq d (abs (r_dsk c')) → r_at c' ≠ PCut → r_fly c' = r_fly c → grows (r_dsk c) (r_dsk c') →
  D c' (Device d (x_fly x)).
Proof.
  intros [_ _ Hf] Hd Hp E Hg. constructor; [done|done|]. rewrite E. simpl. eapply Forall2_impl; [done|].
  intros p q (?&?&?). split_and!; try done. by eapply grows_trans.
Qed.
Lemma to_repl_same c c' : to_repl N c = Ok c' → r_dsk c' = r_dsk c ∧ r_fly c' = r_fly c ∧ ∃ i h l td, r_at c' = PRepl i h l td.
Proof.
  destruct c as [t R a fl p]. unfold to_repl. simpl. intros H.
  destruct p; try done; repeat (case_match; simplify_eq; simpl in *; try done); simplify_eq; simpl; eauto 10.
Qed.
Ltac same H := eapply (fields_none _ H); repeat first [apply elem_of_list_here|apply elem_of_list_further].

Lemma D_rexec c e c' x : D c x → rexec N c e = Ok c' → D c' (on_recovery e c' x).
Proof.
  intros HD Hx. destruct c as [t R a fl p]. destruct x as [X fx]. pose proof HD as [Hd Hc Hf]. unfold rexec in Hx. simpl in *.
  destruct e as [b v|i y|i g| |f|f|gen ep rep tl pos en f| |b v| |gen ep tl pos f| |k|]; cbn [on_recovery x_disk x_fly].
  - destruct p; try done. destruct (opick _ _); [|done]. simplify_eq. rewrite Hc by done. constructor; [apply deq_refl|done|constructor].
  - destruct p; try done. destruct (pick _ _); [|done]. simplify_eq. rewrite Hc by done. constructor; [apply deq_refl|done|constructor].
  - destruct p; try done. destruct (pick _ _); [|done]. simplify_eq. rewrite Hc by done. constructor; [apply deq_refl|done|constructor].
  - destruct p; try done. simplify_eq. by eapply (D_more _ _ _ X HD).
  - assert (p ≠ PCut ∧ c' = Rc t R a ((f, t) :: fl) p) as [Hne ->].
    { destruct p; try done; destruct (tmem fl f); try done; by injection Hx as <-. }
    constructor; [done|done|]. simpl. constructor; [|done]. split_and!; try done; apply Hd.
  - destruct (tfind fl f) as [sn|] eqn:E; [|by destruct p].
    assert (p ≠ PCut ∧ c' = Rc (tsync sn t) R a (tdrop f fl) p) as [Hne ->].
    { destruct p; try done; by injection Hx as <-. }
    destruct (fly_find (λ s sn, deq s (abs sn) ∧ grows sn t) _ _ _ _ Hf E) as (s&->&Hs&Hg).
    constructor; [by apply deq_sync|done|]. simpl.
    eapply Forall2_impl; [by apply (fly_drop (λ s sn, deq s (abs sn) ∧ grows sn t))|].
    intros q q' (?&?&?). split_and!; try done. by eapply grows_trans, grows_teach.
  - destruct p; try done. destruct (best t) as [[i h]|]; [|done]. destruct (h_vd h); [done|].
    destruct (judge N t R h) as [l|]; [|done].
    assert (∃ n, c' = Rc (twrh (negb i) (verdict h n) t) R a fl (PVerd i h l) ∧
      Hdr gen ep rep tl pos f (Some en) = verdict h n) as (n&->&Ew).
    { destruct l as [|r l]; [done|]. destruct (fields _) eqn:Ef; [done|]. destruct (tdefinite t); [|done]. injection Hx as <-.
      eexists. split; [done|]. unfold verdict. f_equal; [same Ef..|f_equal; same Ef]. }
    rewrite Ew. eapply (D_more _ _ _ _ HD); try done; [by apply deq_wrh|apply grows_teach].
  - destruct p; try done. simplify_eq. eapply (D_more _ _ _ _ HD); try done; [by apply deq_fih|apply grows_teach].
  - destruct (to_repl _ _) as [c1|] eqn:Et; [|done]. destruct (to_repl_same _ _ Et) as (_&_&i&h&l&td&Hat). rewrite Hat in Hx.
    destruct (tfind td b) as [[]|]; try done. destruct (differ _ _); [done|]. destruct (oall _); [|done]. simplify_eq.
    eapply (D_more _ _ _ _ HD); try done; [|by eapply grows_trans, grows_teach; apply grows_tknow].
    apply abs_twrm; [|eapply deq_trans; [done|apply abs_tknow]]. intros b' Hb'. unfold one.
    destruct (decide (b' = b)) as [->|]; [|done]. exfalso. apply Hb', knows_tknow. right. by left.
  - destruct (to_repl _ _) as [c1|] eqn:Et; [|done]. destruct (to_repl_same _ _ Et) as (_&_&i&h&l&td&Hat). rewrite Hat in Hx.
    destruct (firstof _ _); [done|]. simplify_eq.
    eapply (D_more _ _ _ _ HD); try done; [by apply deq_fim|apply grows_teach].
  - assert (∃ i h l e p', write_fresh (Rc t R a fl p) gen ep tl pos f i h l e p' = Ok c' ∧ ∃ k, p' = PFresh i h k) as (i&h&l&e&p'&Hw&k&->).
    { revert Hx. repeat (case_match; simplify_eq; try done); intros; eauto 10. }
    unfold write_fresh in Hw. simpl in Hw. destruct (fields _) eqn:Ef; [done|]. destruct (tdefinite t); [|done]. injection Hw as <-.
    assert (Hdr gen ep ep tl pos f None = fresh h l e) as -> by (unfold fresh; f_equal; same Ef).
    eapply (D_more _ _ _ _ HD); try done; [by apply deq_wrh|apply grows_teach].
  - destruct p; try done. simplify_eq. eapply (D_more _ _ _ _ HD); try done; [by apply deq_fih|apply grows_teach].
  - destruct p as [| | | |i h k'|]; try done. destruct (negb _); [done|]. destruct (tdefinite t); [|done]. simplify_eq.
    by eapply (D_more _ _ _ X HD).
  - simplify_eq. constructor; [apply deq_refl|done|constructor].
Qed.
(** While a recovery is accepted, the disk that its survivors, flushes and headers are checked
    with is the device that its lines describe; [CheckRecovery] shows that the model's may hold
    all that it may. *)
Theorem recovery_device l c c' x : D c x → rexecs N c l = Ok c' → deq (x_disk (on_recoveries c l x)) (abs (r_dsk c')).
Proof.
  revert c x. induction l as [|e l IH]; intros c x HD; simpl; [intros [= <-]; apply HD|].
  destruct (rexec N c e) as [c1|] eqn:E; [|done]. intros Hx. eapply IH; [by eapply D_rexec|done].
Qed.
Theorem cut_device c : D (cut_run c) (Device (abs (r_dsk (cut_run c))) []).
Proof. constructor; [apply deq_refl|done|constructor]. Qed.
End recovery.
