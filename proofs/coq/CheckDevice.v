(** The disk of the model in tables, for the checker: blocks have eight sectors, a sector is the
    name (a hash) of its bytes. What each operation does to the tables is what it does to the
    model's disk; and flush snapshots never run ahead of completion. *)
From stdpp Require Import prelude functions list.
From Steadfast Require Import Disk Replay Journal Inv Recovery Run Refine.

(** ** Blocks of eight sectors *)
Inductive sector := S0 | S1 | S2 | S3 | S4 | S5 | S6 | S7.
Record oct (A : Type) := Oct { o0 : A; o1 : A; o2 : A; o3 : A; o4 : A; o5 : A; o6 : A; o7 : A }.
Arguments Oct {A} _ _ _ _ _ _ _ _.
Arguments o0 {A} _. Arguments o1 {A} _. Arguments o2 {A} _. Arguments o3 {A} _.
Arguments o4 {A} _. Arguments o5 {A} _. Arguments o6 {A} _. Arguments o7 {A} _.
Definition oget {A} (x : oct A) (o : sector) : A :=
  match o with S0 => o0 x | S1 => o1 x | S2 => o2 x | S3 => o3 x | S4 => o4 x | S5 => o5 x | S6 => o6 x | S7 => o7 x end.
Definition oof {A} (f : sector → A) : oct A := Oct (f S0) (f S1) (f S2) (f S3) (f S4) (f S5) (f S6) (f S7).
Definition oall (p : sector → bool) : bool := p S0 && p S1 && p S2 && p S3 && p S4 && p S5 && p S6 && p S7.
Lemma oget_oof {A} (f : sector → A) o : oget (oof f) o = f o.
Proof. by destruct o. Qed.
Lemma oall_true p : oall p = true → ∀ o, p o = true.
Proof. unfold oall. rewrite !andb_true_iff. intros (((((((?&?)&?)&?)&?)&?)&?)&?) []; done. Qed.

(** ** Tables *)
Definition tab (A : Type) : Type := list (nat * A).
Fixpoint tget {A} (x : A) (t : tab A) (a : nat) : A :=
  match t with [] => x | (b, y) :: t => if Nat.eqb b a then y else tget x t a end.
Fixpoint tmem {A} (t : tab A) (a : nat) : bool :=
  match t with [] => false | (b, _) :: t => Nat.eqb b a || tmem t a end.
Definition tmap {A} (f : nat → A → A) (t : tab A) : tab A := (λ p : nat * A, (p.1, f p.1 p.2)) <$> t.
Definition tadd {A} (x : A) (t : tab A) (a : nat) : tab A := if tmem t a then t else t ++ [(a, x)].

Section tables.
Context {A : Type}.
Implicit Types (t : tab A) (x : A).
Lemma tget_none x t a : tmem t a = false → tget x t a = x.
Proof.
  induction t as [|[b y] t IH]; simpl; [done|]. intros [E H]%orb_false_iff. rewrite E. by apply IH.
Qed.
Lemma tget_tmap f x t a : tmem t a = true → tget x (tmap f t) a = f a (tget x t a).
Proof.
  induction t as [|[b y] t IH]; simpl; [done|]. destruct (Nat.eqb b a) eqn:E; simpl; [|apply IH].
  apply Nat.eqb_eq in E as ->. done.
Qed.
Lemma tmem_tmap f t a : tmem (tmap f t) a = tmem t a.
Proof. induction t as [|[b y] t IH]; simpl; [done|]. by rewrite IH. Qed.
Lemma tget_upd f x t a : (tmem t a = false → f a x = x) → tget x (tmap f t) a = f a (tget x t a).
Proof.
  intros H. destruct (tmem t a) eqn:E; [by apply tget_tmap|].
  rewrite !tget_none; [by rewrite H|done|by rewrite tmem_tmap].
Qed.
Lemma tget_in x t a : tmem t a = true → (a, tget x t a) ∈ t.
Proof.
  induction t as [|[b y] t IH]; simpl; [done|]. destruct (Nat.eqb b a) eqn:E; simpl.
  - apply Nat.eqb_eq in E as ->. intros _. by left.
  - intros H. right. by apply IH.
Qed.
Lemma tmem_app t t' a : tmem (t ++ t') a = tmem t a || tmem t' a.
Proof. induction t as [|[b y] t IH]; simpl; [done|]. by rewrite IH, orb_assoc. Qed.
Lemma tget_tadd x t b a : tget x (tadd x t b) a = tget x t a.
Proof.
  unfold tadd. destruct (tmem t b); [done|].
  induction t as [|[c y] t IH]; simpl; [by destruct (Nat.eqb b a)|]. by rewrite IH.
Qed.
Lemma tmem_tadd x t b a : tmem (tadd x t b) a = tmem t a || Nat.eqb b a.
Proof.
  unfold tadd. destruct (tmem t b) eqn:E.
  - destruct (Nat.eqb b a) eqn:E'; [|by rewrite orb_false_r]. apply Nat.eqb_eq in E' as <-. by rewrite E.
  - rewrite tmem_app. simpl. by rewrite orb_false_r.
Qed.
Lemma tget_tadds x l t a : tget x (foldl (tadd x) t l) a = tget x t a.
Proof. revert t. induction l as [|b l IH]; intros t; simpl; [done|]. by rewrite IH, tget_tadd. Qed.
Lemma tmem_tadds x l t a : tmem (foldl (tadd x) t l) a = true ↔ tmem t a = true ∨ a ∈ l.
Proof.
  revert t. induction l as [|b l IH]; intros t; simpl.
  - split; [by left|]. intros [?|?%elem_of_nil]; done.
  - rewrite IH, tmem_tadd, orb_true_iff, elem_of_cons, Nat.eqb_eq. split; [intros [[?|?]|?]|intros [?|[?|?]]]; auto.
Qed.
Lemma tmem_keys t a : tmem t a = true ↔ a ∈ t.*1.
Proof.
  induction t as [|[b y] t IH]; csimpl; [split; [done|by intros ?%elem_of_nil]|].
  rewrite orb_true_iff, IH, elem_of_cons, Nat.eqb_eq. naive_solver.
Qed.
End tables.

Notation jst := (@st nat sector nat).
Notation jdisk := (@disk nat sector nat).
Notation jvol := (@vol nat sector nat).
Notation jrec := (@rec nat sector nat).
Notation jlabel := (@label nat sector nat).
Notation jlblk := (option (jrec * nat)).
Notation jimg := (nat → option (sector → nat)).

(** ** Flush snapshots never run ahead of completion *)
Section snaps.
Context (N : nat) (d0 : nat → option (sector → nat)).
Definition cwf {A} (c : cell A) : Prop := don c ≤ length (old c).
Definition dwf (d : jdisk) : Prop :=
  (∀ b o, cwf (home d b o)) ∧ (∀ i, cwf (slots d i)) ∧ (∀ i, cwf (hdrs d i)).
Definition dle (d d' : jdisk) : Prop :=
  (∀ b o, don (home d b o) ≤ don (home d' b o)) ∧ (∀ i, don (slots d i) ≤ don (slots d' i)) ∧
  (∀ i, don (hdrs d i) ≤ don (hdrs d' i)).
Definition sn_le (sn : snap) (d : jdisk) : Prop :=
  (∀ b o, sn_home sn b o ≤ don (home d b o)) ∧ (∀ i, sn_slots sn i ≤ don (slots d i)) ∧
  (∀ i, sn_hdrs sn i ≤ don (hdrs d i)).
Definition cp_le (c : cpc) d : Prop := match c with CF sn => sn_le sn d | _ => True end.
Definition kp_le (k : @kpc nat sector nat) d : Prop := match k with KF _ _ sn | KHF _ sn => sn_le sn d | _ => True end.
Definition W (s : jst) : Prop :=
  dwf (dk s) ∧ match md s with Run v => cp_le (cp v) (dk s) ∧ kp_le (kp v) (dk s) | _ => True end.

Lemma cwf_begin {A} g (c : cell A) v : cwf c → cwf (begin g c v) ∧ don c ≤ don (begin g c v).
Proof. unfold cwf. simpl. rewrite app_length. simpl. lia. Qed.
Lemma cwf_finish {A} (c : cell A) : cwf c → cwf (finish c) ∧ don c ≤ don (finish c).
Proof. unfold cwf. simpl. lia. Qed.
Lemma cwf_clean {A} (c : cell A) : cwf (clean c).
Proof. unfold cwf. simpl. lia. Qed.
Lemma sn_le_mono sn d d' : dle d d' → sn_le sn d → sn_le sn d'.
Proof. intros (?&?&?) (?&?&?). split_and!; intros; etrans; eauto. Qed.
Lemma cp_le_mono c d d' : dle d d' → cp_le c d → cp_le c d'.
Proof. destruct c; simpl; eauto using sn_le_mono. Qed.
Lemma kp_le_mono k d d' : dle d d' → kp_le k d → kp_le k d'.
Proof. destruct k; simpl; eauto using sn_le_mono. Qed.
Lemma dle_refl d : dle d d.
Proof. by split_and!. Qed.
Lemma sn_le_self d : sn_le (snapof d) d.
Proof. by split_and!. Qed.
Lemma dwf_wrm img H G D : dwf (Disk H G D) → dwf (Disk (wrm img H) G D) ∧ dle (Disk H G D) (Disk (wrm img H) G D).
Proof.
  intros (Hh&?&?). split; split_and!; try done; intros b o; simpl; unfold wrm; destruct (img b); try done;
    first [by apply (proj1 (cwf_begin _ _ _ (Hh b o)))
      |by apply (proj2 (cwf_begin _ _ _ (Hh b o)))|apply Hh].
Qed.
Lemma dwf_fim img H G D : dwf (Disk H G D) → dwf (Disk (fim img H) G D) ∧ dle (Disk H G D) (Disk (fim img H) G D).
Proof.
  intros (Hh&?&?). split; split_and!; try done; intros b o; simpl; unfold fim; destruct (img b); try done;
    first [by apply (proj1 (cwf_finish _ (Hh b o)))
      |by apply (proj2 (cwf_finish _ (Hh b o)))|apply Hh].
Qed.
Lemma dwf_wrs r H G D : dwf (Disk H G D) → dwf (Disk H (wrs N r G) D) ∧ dle (Disk H G D) (Disk H (wrs N r G) D).
Proof.
  intros (?&Hs&?). split; split_and!; try done; intros i; simpl; unfold wrs; destruct (part _ _ _ _); try done;
    first [by apply (proj1 (cwf_begin _ _ _ (Hs i)))
      |by apply (proj2 (cwf_begin _ _ _ (Hs i)))|apply Hs].
Qed.
Lemma dwf_fis r H G D : dwf (Disk H G D) → dwf (Disk H (fis N r G) D) ∧ dle (Disk H G D) (Disk H (fis N r G) D).
Proof.
  intros (?&Hs&?). split; split_and!; try done; intros i; simpl; unfold fis; destruct (part _ _ _ _); try done;
    first [by apply (proj1 (cwf_finish _ (Hs i)))
      |by apply (proj2 (cwf_finish _ (Hs i)))|apply Hs].
Qed.
Lemma dwf_wrh i x H G D : dwf (Disk H G D) → dwf (Disk H G (wrh i x D)) ∧ dle (Disk H G D) (Disk H G (wrh i x D)).
Proof.
  intros (?&?&Hd). split; split_and!; try done; intros j; simpl; unfold wrh; case_decide; try done;
    first [by apply (proj1 (cwf_begin _ _ _ (Hd j)))
      |by apply (proj2 (cwf_begin _ _ _ (Hd j)))|apply Hd].
Qed.
Lemma dwf_fih i H G D : dwf (Disk H G D) → dwf (Disk H G (fih i D)) ∧ dle (Disk H G D) (Disk H G (fih i D)).
Proof.
  intros (?&?&Hd). split; split_and!; try done; intros j; simpl; unfold fih; case_decide; try done;
    first [by apply (proj1 (cwf_finish _ (Hd j)))
      |by apply (proj2 (cwf_finish _ (Hd j)))|apply Hd].
Qed.
Lemma dwf_clean d : dwf (dclean d).
Proof. split_and!; intros; apply cwf_clean. Qed.

Lemma W_step l s s' : W s → step 0 N d0 l s s' → W s'.
Proof.
  intros [Hd Hm] Hst. destruct Hst; simpl in *.
  - destruct H as (Ph&Ps&Pd). assert (dle d d').
    { split_and!; intros; [destruct (Ph b o) as (_&_&->&_)|destruct (Ps i) as (_&_&->&_)|destruct (Pd i) as (_&_&->&_)]; done. }
    split.
    + destruct Hd as (H1&H2&H3). simpl. unfold cwf in *. split_and!; intros; unfold cwf; simpl.
      * destruct (Ph b o) as (->&_&->&_). apply H1.
      * destruct (Ps i) as (->&_&->&_). apply H2.
      * destruct (Pd i) as (->&_&->&_). apply H3.
    + simpl. destruct m; try done. destruct Hm. eauto using cp_le_mono, kp_le_mono.
  - destruct H as (Sh&Ss&Sd). split; [|done]. simpl. unfold dwf, cwf.
    split_and!; intros; [destruct (Sh b o) as [[-> _] _]|destruct (Ss i) as [[-> _] _]|destruct (Sd i) as [[-> _] _]]; done.
  - destruct (dwf_wrm (one b c) _ _ _ Hd) as [? Hle], Hm. split; simpl; eauto using cp_le_mono, kp_le_mono.
  - destruct (dwf_fim (one b c) _ _ _ Hd) as [? Hle], Hm. split; simpl; eauto using cp_le_mono, kp_le_mono.
  - destruct (dwf_wrs r _ _ _ Hd) as [? Hle], Hm. split; simpl; eauto using cp_le_mono, kp_le_mono.
  - destruct (dwf_fis r _ _ _ Hd) as [? Hle], Hm. split; simpl; eauto using sn_le_self, kp_le_mono.
  - destruct Hm. by split.
  - destruct Hm. by split.
  - done.
  - destruct (dwf_wrm (kimg 0 d0 R (h_tail (hc v)) a) _ _ _ Hd) as [? Hle], Hm. split; simpl; eauto using cp_le_mono.
  - destruct (dwf_fim img _ _ _ Hd) as [? Hle], Hm. split; simpl; eauto using cp_le_mono, sn_le_self.
  - destruct (dwf_wrh (negb (nh v)) (hnew v R u) _ _ _ Hd) as [? Hle], Hm. split; simpl; eauto using cp_le_mono.
  - destruct (dwf_fih (negb (nh v)) _ _ _ Hd) as [? Hle], Hm. split; simpl; eauto using cp_le_mono, sn_le_self.
  - destruct Hm. by split.
  - split; [|done]. apply (dwf_wrh _ _ _ _ _ (dwf_clean (Disk H G D))).
  - split; [|done]. apply (dwf_wrh _ _ _ _ _ (dwf_clean (Disk H G D))).
  - split; [|done]. apply (dwf_wrm _ _ _ _ (dwf_clean (Disk H G D))).
  - split; [|done]. apply (dwf_wrm _ _ _ _ (dwf_clean d)).
  - split; [|done]. apply (dwf_wrh _ _ _ _ _ (dwf_clean d)).
  - split; [|done]. apply dwf_clean.
Qed.


(** Outside of cuts and openings, completion only grows. *)
Lemma run_dle l s s' v : W s → step 0 N d0 l s s' → l ≠ Crash → md s = Run v →
  dle (dk s) (dk s') ∧ ∃ v', md s' = Run v'.
Proof.
  intros [Hd _] Hst Hl Hv. destruct Hst; simplify_eq; simpl in *; try done; (split; [|by eexists]); try done.
  - destruct H as (Ph&Ps&Pd). split_and!; intros; [destruct (Ph b o) as (_&_&->&_)|destruct (Ps i) as (_&_&->&_)|destruct (Pd i) as (_&_&->&_)]; done.
  - by apply dwf_wrm.
  - by apply dwf_fim.
  - by apply dwf_wrs.
  - by apply dwf_fis.
  - by apply dwf_wrm.
  - by apply dwf_fim.
  - by apply dwf_wrh.
  - by apply dwf_fih.
Qed.
End snaps.

(** ** The disk in tables *)
Record tdisk := TD {
  t_home : tab (oct (cell nat)); t_slots : tab (cell jlblk); t_h0 : cell (option hdr); t_h1 : cell (option hdr) }.
Definition c0 : cell nat := Cell [] 0 0 0 false.
Definition x0 : oct (cell nat) := oof (λ _, c0).
Definition s0 : cell jlblk := Cell [] None 0 0 false.
Definition abs (t : tdisk) : jdisk :=
  Disk (λ b o, oget (tget x0 (t_home t) b) o) (λ i, tget s0 (t_slots t) i) (λ i, if i then t_h1 t else t_h0 t).

Definition oeach {A} (f : sector → A → A) (x : oct A) : oct A := oof (λ o, f o (oget x o)).
(** Every cell of the disk, changed by itself. *)
Definition teach (fh : nat → oct (cell nat) → oct (cell nat)) (fs : nat → cell jlblk → cell jlblk)
    (fd : bool → cell (option hdr) → cell (option hdr)) (t : tdisk) : tdisk :=
  TD (tmap fh (t_home t)) (tmap fs (t_slots t)) (fd false (t_h0 t)) (fd true (t_h1 t)).
Definition keep {K A} (_ : K) (x : A) : A := x.
(** Blocks that the tables must know, before they are written. *)
Definition tknow (bs is : list nat) (t : tdisk) : tdisk :=
  TD (foldl (tadd x0) (t_home t) bs) (foldl (tadd s0) (t_slots t) is) (t_h0 t) (t_h1 t).

Definition twrm (img : jimg) : tdisk → tdisk :=
  teach (λ b x, match img b with Some v => oeach (λ o c, begin [] c (v o)) x | None => x end) keep keep.
Definition tfim (img : jimg) : tdisk → tdisk :=
  teach (λ b x, match img b with Some _ => oeach (λ _, finish) x | None => x end) keep keep.
Definition twrs (N : nat) (r : jrec) : tdisk → tdisk :=
  teach keep (λ i c, match part N (r_pos r) (r_len r) i with Some j => begin [None] c (Some (r, j)) | None => c end) keep.
Definition tfis (N : nat) (r : jrec) : tdisk → tdisk :=
  teach keep (λ i c, match part N (r_pos r) (r_len r) i with Some _ => finish c | None => c end) keep.
Definition twrh (i : bool) (x : hdr) : tdisk → tdisk :=
  teach keep keep (λ j c, if Bool.eqb j i then begin [None] c (Some x) else c).
Definition tfih (i : bool) : tdisk → tdisk := teach keep keep (λ j c, if Bool.eqb j i then finish c else c).
(** A flush's end: what was complete when it began has persisted, and no more than that. *)
Definition lift {A} (n : nat) (c : cell A) : cell A := Cell (old c) (cur c) (low c `max` n) (don c) (bad c).
Definition tsync (sn : tdisk) : tdisk → tdisk :=
  teach (λ b x, let y := tget x0 (t_home sn) b in oeach (λ o, lift (don (oget y o))) x)
    (λ i, lift (don (tget s0 (t_slots sn) i))) (λ i, lift (don (if i then t_h1 sn else t_h0 sn))).

Definition deq (d d' : jdisk) : Prop :=
  (∀ b o, home d b o = home d' b o) ∧ (∀ i, slots d i = slots d' i) ∧ (∀ i, hdrs d i = hdrs d' i).
Lemma deq_persist d d' : deq d d' → dpersist d d'.
Proof. intros (H1&H2&H3). split_and!; intros; rewrite ?H1, ?H2, ?H3; unfold persist; split_and!; first [done|lia]. Qed.
Lemma tget_keep {A} (x : A) (t : tab A) a : tget x (tmap keep t) a = tget x t a.
Proof. by rewrite tget_upd. Qed.
Lemma oget_oeach {A} (f : sector → A → A) x o : oget (oeach f x) o = f o (oget x o).
Proof. unfold oeach. by rewrite oget_oof. Qed.
Lemma oget_x0 o : oget x0 o = c0.
Proof. by destruct o. Qed.

Definition knows (t : tdisk) (b : nat) : Prop := tmem (t_home t) b = true.
Lemma abs_tknow bs is t : deq (abs t) (abs (tknow bs is t)).
Proof. split_and!; intros; simpl; by rewrite ?tget_tadds. Qed.
Lemma knows_tknow bs is t b : knows (tknow bs is t) b ↔ knows t b ∨ b ∈ bs.
Proof. unfold knows. simpl. apply tmem_tadds. Qed.
Lemma knows_teach fh fs fd t b : knows (teach fh fs fd t) b ↔ knows t b.
Proof. unfold knows. simpl. by rewrite tmem_tmap. Qed.
Lemma not_knows t b : ¬ knows t b ↔ tmem (t_home t) b = false.
Proof. unfold knows. by rewrite not_true_iff_false. Qed.

Lemma abs_twrm img d t : (∀ b, ¬ knows t b → img b = None) → deq d (abs t) →
  deq (Disk (wrm img (home d)) (slots d) (hdrs d)) (abs (twrm img t)).
Proof.
  intros Hn (H1&H2&H3). split_and!; intros; simpl; rewrite ?tget_keep; [|apply H2|rewrite H3; by destruct i].
  rewrite tget_upd by (intros H%not_knows; by rewrite Hn). unfold wrm. rewrite H1. simpl.
  destruct (img b); [|done]. by rewrite oget_oeach.
Qed.
Lemma abs_tfim img t : deq (Disk (fim img (home (abs t))) (slots (abs t)) (hdrs (abs t))) (abs (tfim img t)).
Proof.
  split_and!; intros; simpl; rewrite ?tget_keep; try first [done|by destruct i].
  rewrite tget_upd by (intros _; by destruct (img b)). unfold fim.
  destruct (img b); [|done]. by rewrite oget_oeach.
Qed.
Lemma abs_twrs N (r : jrec) t bs : let t1 := tknow bs ((λ j, (r_pos r + j) `mod` N) <$> seq 0 (r_len r)) t in
  deq (Disk (home (abs t)) (wrs N r (slots (abs t))) (hdrs (abs t))) (abs (twrs N r t1)).
Proof.
  simpl. split_and!; intros; simpl; rewrite ?tget_keep, ?tget_tadds; try first [done|by destruct i].
  rewrite tget_upd, tget_tadds; [done|]. intros Hm. destruct (part _ _ _ i) as [j|] eqn:E; [|done].
  apply part_some in E as [Hj <-]. apply not_true_iff_false in Hm. exfalso. apply Hm, tmem_tadds. right.
  apply elem_of_list_fmap. exists j. split; [done|]. apply elem_of_seq. lia.
Qed.
Lemma abs_tfis N (r : jrec) t : deq (Disk (home (abs t)) (fis N r (slots (abs t))) (hdrs (abs t))) (abs (tfis N r t)).
Proof.
  split_and!; intros; simpl; rewrite ?tget_keep; try first [done|by destruct i].
  rewrite tget_upd; [done|]. intros _. by destruct (part _ _ _ i).
Qed.
Lemma abs_twrh i x t : deq (Disk (home (abs t)) (slots (abs t)) (wrh i x (hdrs (abs t)))) (abs (twrh i x t)).
Proof. split_and!; intros; simpl; rewrite ?tget_keep; try done. unfold wrh, keep. by destruct i, i0. Qed.
Lemma abs_tfih i t : deq (Disk (home (abs t)) (slots (abs t)) (fih i (hdrs (abs t)))) (abs (tfih i t)).
Proof. split_and!; intros; simpl; rewrite ?tget_keep; try done. unfold fih, keep. by destruct i, i0. Qed.

Lemma persist_lift {A} n (c : cell A) : n ≤ don c → persist c (lift n c).
Proof. intros. unfold persist. simpl. split_and!; first [done|lia]. Qed.
Lemma persist_refl {A} (c : cell A) : persist c c.
Proof. unfold persist. split_and!; first [done|lia]. Qed.
Lemma abs_tsync sn t : dle (abs sn) (abs t) → dpersist (abs t) (abs (tsync sn t)).
Proof.
  intros (H1&H2&H3). split_and!; intros; simpl.
  - destruct (tmem (t_home t) b) eqn:E.
    + rewrite tget_tmap by done. rewrite oget_oeach. by apply persist_lift, (H1 b o).
    + rewrite !tget_none by (by rewrite ?tmem_tmap). apply persist_refl.
  - destruct (tmem (t_slots t) i) eqn:E.
    + rewrite tget_tmap by done. by apply persist_lift, (H2 i).
    + rewrite !tget_none by (by rewrite ?tmem_tmap). apply persist_refl.
  - specialize (H3 i). destruct i; by apply persist_lift.
Qed.

(** Whether all of a snapshot is durable. *)
Definition flushedb (sn : snap) (t : tdisk) : bool :=
  forallb (λ p, oall (λ o, sn_home sn p.1 o <=? low (oget p.2 o))) (t_home t) &&
  forallb (λ p, sn_slots sn p.1 <=? low p.2) (t_slots t) &&
  (sn_hdrs sn false <=? low (t_h0 t)) && (sn_hdrs sn true <=? low (t_h1 t)).
Lemma forallb_in {A} (p : A → bool) l x : forallb p l = true → x ∈ l → p x = true.
Proof. intros H Hx. rewrite forallb_forall in H. apply H. by apply elem_of_list_In. Qed.
Lemma flushedb_sound sn t : sn_le sn (abs t) → flushedb sn t = true → flushed sn (abs t).
Proof.
  intros (L1&L2&L3). unfold flushedb. rewrite !andb_true_iff, !Nat.leb_le. intros (((H1&H2)&H3)&H4).
  split_and!; intros.
  - destruct (tmem (t_home t) b) eqn:E.
    + apply (tget_in x0), (forallb_in _ _ _ H1) in E. apply Nat.leb_le, (oall_true _ E o).
    + specialize (L1 b o). simpl in *. rewrite tget_none in * by done. rewrite oget_x0 in *. simpl in *. lia.
  - destruct (tmem (t_slots t) i) eqn:E.
    + apply (tget_in s0), (forallb_in _ _ _ H2) in E. by apply Nat.leb_le.
    + specialize (L2 i). simpl in *. rewrite tget_none in * by done. simpl in *. lia.
  - by destruct i.
Qed.
