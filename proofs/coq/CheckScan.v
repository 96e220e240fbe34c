(** The states that a cut may leave, cell by cell, and the findings that recovery must make in them:
    the newer header, its chain, the first covered block that does not match. The device of a trace is
    separate from the model's disk: it holds each single write, and each of its possible states is
    among those of the model's disk. *)
From stdpp Require Import prelude functions list.
From Steadfast Require Import Disk Replay Journal Inv Recovery Run Refine CheckDevice Checker.

Section cells.
Context {A : Type}.
Implicit Types (c : cell A).
(** After a cut: the newest value is seen, and all that was possible still is. *)
Definition surv c : cell A := Cell (drop (low c) (old c)) (cur c) 0 (length (drop (low c) (old c))) false.
(** The newest value that [p] names is the one that is seen. *)
Definition pick (p : A → bool) c : option (cell A) :=
  if p (cur c) then Some c else
  let l := drop (low c) (old c) in
  match List.find p (rev l) with
  | Some v => Some (Cell (l ++ [cur c]) v 0 (length (l ++ [cur c])) false)
  | None => None
  end.
(** The write under way has not begun. *)
Definition unbegin c : cell A :=
  match last (old c) with
  | Some v => if low c <? length (old c) then Cell (take (length (old c) - 1) (old c)) v (low c) (don c) (bad c) else c
  | None => c
  end.
Lemma drop_poss c v : v ∈ drop (low c) (old c) → poss c v.
Proof.
  intros (i&Hi)%elem_of_list_lookup. rewrite lookup_drop in Hi. right. left. exists (low c + i). split; [lia|done].
Qed.
Lemma surv_ok c : quiet (surv c) ∧ ∀ v, poss (surv c) v → poss c v.
Proof.
  split; [done|]. intros v [->|[(i&_&Hi)|?]]; [exact (poss_cur c)| |done]. simpl in Hi.
  apply drop_poss, elem_of_list_lookup. eauto.
Qed.
Lemma pick_ok p c c' : quiet c → pick p c = Some c' → quiet c' ∧ ∀ v, poss c' v → poss c v.
Proof.
  intros Hq. unfold pick. destruct (p (cur c)); [intros [= <-]; done|].
  destruct (List.find _ _) as [v|] eqn:E; [|done]. intros [= <-]. split; [done|].
  apply List.find_some in E as [E _]. apply in_rev, elem_of_list_In in E.
  intros w [->|[(i&_&Hi)|?]]; simpl in *; [by apply drop_poss| |done].
  apply elem_of_list_lookup_2, elem_of_app in Hi as [Hi|Hi]; [by apply drop_poss|].
  apply elem_of_list_singleton in Hi as ->. apply poss_cur.
Qed.
Lemma unbegin_poss c v : poss (unbegin c) v → poss c v.
Proof.
  unfold unbegin. destruct (last (old c)) as [x|] eqn:E; [|done]. destruct (_ <? _) eqn:El; [|done].
  apply Nat.ltb_lt in El. rewrite last_lookup in E. intros [->|[(i&Hi&Hv)|Hb]]; simpl in *.
  - right. left. exists (Init.Nat.pred (length (old c))). split; [lia|done].
  - apply lookup_take_Some in Hv as [Hv _]. right. left. eauto.
  - by right; right.
Qed.
Definition definite c : bool := (don c =? length (old c)) && (length (old c) <=? low c) && negb (bad c).
Lemma definite_true c : definite c = true → quiet c ∧ ∀ v, poss c v → v = cur c.
Proof.
  unfold definite. rewrite !andb_true_iff, Nat.eqb_eq, Nat.leb_le, negb_true_iff. intros ((Hd&Hl)&Hb).
  split; [done|]. intros v. by apply poss_exact.
Qed.
Definition quietb c : bool := (don c =? length (old c)) && negb (bad c).
Lemma quietb_true c : quietb c = true → quiet c.
Proof. unfold quietb. rewrite andb_true_iff, Nat.eqb_eq, negb_true_iff. done. Qed.
End cells.

(** ** The device and the model's disk *)
(** The device's outcomes are among the model's. *)
Definition sub (t : tdisk) (d : jdisk) : Prop :=
  (∀ b o w, poss (home (abs t) b o) w → poss (home d b o) w) ∧
  (∀ i w, poss (slots (abs t) i) w → poss (slots d i) w) ∧
  (∀ i w, poss (hdrs (abs t) i) w → poss (hdrs d i) w).
(** What is read from the log and the headers is the same; and from home. *)
Definition log_is (t : tdisk) (d : jdisk) : Prop :=
  (∀ i, cur (slots (abs t) i) = cur (slots d i)) ∧ (∀ i, cur (hdrs (abs t) i) = cur (hdrs d i)).
Definition home_eq (t : tdisk) (d : jdisk) : Prop := ∀ b o, cur (home (abs t) b o) = cur (home d b o).

Definition tsurv : tdisk → tdisk := teach (λ _, oeach (λ _, surv)) (λ _, surv) (λ _, surv).
(** Of a checkpoint's home writes, those that have not begun. *)
Definition tback (l : tab phase) : tdisk → tdisk :=
  teach (λ b x, match tfind l b with Some Waiting => oeach (λ _, unbegin) x | _ => x end) keep keep.
Definition tdefinite (t : tdisk) : bool :=
  forallb (λ p, oall (λ o, definite (oget p.2 o))) (t_home t) && forallb (λ p, definite p.2) (t_slots t) &&
  definite (t_h0 t) && definite (t_h1 t).

(** A change of each cell that takes outcomes away and leaves what is read. *)
Definition narrows {A} (c c' : cell A) : Prop := (∀ w, poss c' w → poss c w) ∧ cur c' = cur c.
Lemma narrows_refl {A} (c : cell A) : narrows c c.
Proof. done. Qed.
Lemma narrows_lift {A} n (c : cell A) : narrows c (lift n c).
Proof.
  split; [|done]. intros w [->|[(i&Hi&Hw)|Hb]]; [exact (poss_cur c)| |by right; right].
  right. left. exists i. simpl in *. split; [lia|done].
Qed.
Lemma narrows_surv {A} (c : cell A) : narrows c (surv c).
Proof. split; [apply surv_ok|done]. Qed.

Lemma abs_home_teach fh fs fd t b o : home (abs (teach fh fs fd t)) b o =
  if tmem (t_home t) b then oget (fh b (tget x0 (t_home t) b)) o else home (abs t) b o.
Proof.
  simpl. destruct (tmem (t_home t) b) eqn:E; [by rewrite tget_tmap|]. by rewrite !tget_none by (by rewrite ?tmem_tmap).
Qed.
Lemma abs_slots_teach fh fs fd t i : slots (abs (teach fh fs fd t)) i =
  if tmem (t_slots t) i then fs i (slots (abs t) i) else slots (abs t) i.
Proof.
  simpl. destruct (tmem (t_slots t) i) eqn:E; [by rewrite tget_tmap|]. by rewrite !tget_none by (by rewrite ?tmem_tmap).
Qed.
Lemma abs_hdrs_teach fh fs fd t i : hdrs (abs (teach fh fs fd t)) i = fd i (hdrs (abs t) i).
Proof. by destruct i. Qed.

Lemma narrows_teach fh fs fd t :
  (∀ b x o, narrows (oget x o) (oget (fh b x) o)) → (∀ i c, narrows c (fs i c)) → (∀ i c, narrows c (fd i c)) →
  (∀ b o, narrows (home (abs t) b o) (home (abs (teach fh fs fd t)) b o)) ∧
  (∀ i, narrows (slots (abs t) i) (slots (abs (teach fh fs fd t)) i)) ∧
  (∀ i, narrows (hdrs (abs t) i) (hdrs (abs (teach fh fs fd t)) i)).
Proof.
  intros H1 H2 H3. split_and!; intros.
  - rewrite abs_home_teach. destruct (tmem _ _); [apply H1|done].
  - rewrite abs_slots_teach. destruct (tmem _ _); [apply H2|done].
  - rewrite abs_hdrs_teach. apply H3.
Qed.
Definition tnarrows (t t' : tdisk) : Prop :=
  (∀ b o, narrows (home (abs t) b o) (home (abs t') b o)) ∧
  (∀ i, narrows (slots (abs t) i) (slots (abs t') i)) ∧ (∀ i, narrows (hdrs (abs t) i) (hdrs (abs t') i)).
Lemma narrows_sync sn t : tnarrows t (tsync sn t).
Proof. apply narrows_teach; intros; rewrite ?oget_oeach; apply narrows_lift. Qed.
Lemma narrows_fih i t : tnarrows t (tfih i t).
Proof. apply narrows_teach; intros; unfold keep; try apply narrows_refl. by destruct (Bool.eqb _ _). Qed.
Lemma narrows_fim img t : tnarrows t (tfim img t).
Proof. apply narrows_teach; intros; unfold keep; try apply narrows_refl. destruct (img b); [|done]. by rewrite oget_oeach. Qed.
Lemma sub_narrows t t' d : tnarrows t t' → sub t d → sub t' d.
Proof.
  intros (H1&H2&H3) (S1&S2&S3).
  split_and!; intros; [by apply S1, (proj1 (H1 _ _))|by apply S2, (proj1 (H2 _))|by apply S3, (proj1 (H3 _))].
Qed.
Lemma log_narrows t t' d : tnarrows t t' → log_is t d → log_is t' d.
Proof. intros (_&H2&H3) (L2&L3). split; intros; [rewrite (proj2 (H2 _))|rewrite (proj2 (H3 _))]; auto. Qed.
Lemma home_narrows t t' b o : tnarrows t t' → cur (home (abs t') b o) = cur (home (abs t) b o).
Proof. intros (H&_). apply H. Qed.

Lemma sub_tback l t : sub (tback l t) (abs t).
Proof.
  split_and!; intros; revert H.
  - unfold tback. rewrite abs_home_teach. destruct (tmem _ _); [|done].
    destruct (tfind l b) as [[]|]; try done. rewrite oget_oeach. apply unbegin_poss.
  - unfold tback. rewrite abs_slots_teach. by destruct (tmem _ _).
  - by destruct i.
Qed.
(** Cells that the tables do not know hold their first value. *)
Lemma dsurvives_tsurv t d : sub t d → dsurvives d (abs (tsurv t)).
Proof.
  intros (H1&H2&H3). assert (tnarrows t (tsurv t)) as (N1&N2&N3).
  { apply narrows_teach; intros; rewrite ?oget_oeach; apply narrows_surv. }
  split_and!; intros; (split; [|intros v Hv]).
  - unfold tsurv. rewrite abs_home_teach. destruct (tmem _ _) eqn:E; [by rewrite oget_oeach|].
    simpl. rewrite tget_none by done. by rewrite oget_x0.
  - by apply H1, (proj1 (N1 _ _)).
  - unfold tsurv. rewrite abs_slots_teach. destruct (tmem _ _) eqn:E; [done|]. simpl. by rewrite tget_none by done.
  - by apply H2, (proj1 (N2 _)).
  - by destruct i.
  - by apply H3, (proj1 (N3 _)).
Qed.

Lemma tdefinite_true t : tdefinite t = true →
  (∀ b o, definite (home (abs t) b o) = true) ∧ (∀ i, definite (slots (abs t) i) = true) ∧
  (∀ i, definite (hdrs (abs t) i) = true).
Proof.
  unfold tdefinite. rewrite !andb_true_iff. intros (((H1&H2)&H3)&H4). split_and!.
  - intros b o. simpl. destruct (tmem (t_home t) b) eqn:E.
    + apply (tget_in x0), (forallb_in _ _ _ H1) in E. apply (oall_true _ E o).
    + rewrite tget_none by done. by rewrite oget_x0.
  - intros i. simpl. destruct (tmem (t_slots t) i) eqn:E.
    + by apply (tget_in s0), (forallb_in _ _ _ H2) in E.
    + by rewrite tget_none by done.
  - by intros [].
Qed.
(** Everything that recovery has written is durable: the flush has made the device definite. *)
Lemma sub_clean t d : tdefinite t = true → log_is t d → home_eq t d → sub t (dclean d).
Proof.
  intros (D1&D2&D3)%tdefinite_true (L2&L3) Hh. split_and!; [intros b o w Hp|intros i w Hp|intros i w Hp].
  - apply (definite_true _ (D1 _ _)) in Hp as ->. rewrite Hh. apply (poss_cur (clean _)).
  - apply (definite_true _ (D2 _)) in Hp as ->. rewrite L2. apply (poss_cur (clean _)).
  - apply (definite_true _ (D3 _)) in Hp as ->. rewrite L3. apply (poss_cur (clean _)).
Qed.

(** ** What recovery must find *)
Section scan.
Context (N : nat).
Notation rec := jrec.
Implicit Types (t : tdisk) (d : jdisk) (R l : list rec).

(** The record at a position: all its parts are there. Of one epoch and sequence there is one
    record only, so names are compared. *)
Definition ispart t (pos sq e i : nat) : bool :=
  match cur (slots (abs t) ((pos + i) `mod` N)) with
  | Some (r, j) => (r_seq r =? sq) && (r_ep r =? e) && (j =? i)
  | None => false
  end.
Definition valid1 t (pos sq e : nat) : option rec :=
  match cur (slots (abs t) (pos `mod` N)) with
  | Some (r, 0) =>
      if (r_seq r =? sq) && (r_ep r =? e) && (r_pos r =? pos) && (1 <=? r_len r) &&
         forallb (ispart t pos sq e) (seq 0 (r_len r))
      then Some r else None
  | _ => None
  end.
(** [None]: longer than what was laid. *)
Fixpoint scan (fuel : nat) t (e pos sq : nat) : option (list rec) :=
  match valid1 t pos sq e with
  | None => Some []
  | Some r => match fuel with
      | 0 => None
      | S f => match scan f t e (pos + r_len r) (S sq) with Some l => Some (r :: l) | None => None end
      end
  end.
Definition matchb t (r : rec) : bool :=
  forallb (λ b, match r_eff r b with
    | ECover true c _ => oall (λ o, cur (home (abs t) b o) =? c o)
    | _ => true end) (t_home t).*1.
Fixpoint cutidx t (p : nat) l : nat :=
  match l with [] => 0 | r :: l => if (p <=? r_seq r) && negb (matchb t r) then 0 else S (cutidx t p l) end.
(** The newer header. *)
Definition best t : option (bool * hdr) :=
  match cur (t_h0 t), cur (t_h1 t) with
  | Some x, None => Some (false, x)
  | None, Some y => Some (true, y)
  | Some x, Some y => if h_gen y <? h_gen x then Some (false, x) else if h_gen x <? h_gen y then Some (true, y) else None
  | None, None => None
  end.

Lemma validat_ext t d pos sq e r : log_is t d → validat N (abs t) pos sq e r → validat N d pos sq e r.
Proof. intros [H _] (?&?&?&?&Hc). split_and!; try done. intros i Hi. rewrite <-H. by apply Hc. Qed.
Lemma validat_ext' t d pos sq e r : log_is t d → validat N d pos sq e r → validat N (abs t) pos sq e r.
Proof. intros [H _] (?&?&?&?&Hc). split_and!; try done. intros i Hi. rewrite H. by apply Hc. Qed.
Definition one_each t R (e : nat) : Prop := ∀ i r j, cur (slots (abs t) i) = Some (r, j) → r_ep r = e → R !! r_seq r = Some r.
Lemma valid1_some t R pos sq e r : one_each t R e → valid1 t pos sq e = Some r → validat N (abs t) pos sq e r ∧ R !! sq = Some r.
Proof.
  intros Hu. unfold valid1. destruct (cur (slots (abs t) (pos `mod` N))) as [[r' [|]]|] eqn:E; try done.
  match goal with |- (if ?x then _ else _) = _ → _ => destruct x eqn:Ec end; [|done]. intros [= ->].
  apply andb_true_iff in Ec as [Ec Hf]. apply andb_true_iff in Ec as [Ec Hl]. apply andb_true_iff in Ec as [Ec Hp%Nat.eqb_eq].
  apply andb_true_iff in Ec as [Hs%Nat.eqb_eq He%Nat.eqb_eq].
  pose proof (Hu _ _ _ E He) as Hr. rewrite Hs in Hr. split; [|done].
  split_and!; try done; [by apply Nat.leb_le in Hl|]. intros i Hi.
  assert (ispart t pos sq e i = true) as Hpt.
  { apply (forallb_in _ _ _ Hf). apply elem_of_seq. lia. }
  unfold ispart in Hpt. destruct (cur (slots (abs t) ((pos + i) `mod` N))) as [[r' j]|] eqn:E'; [|done].
  apply andb_true_iff in Hpt as [Hpt ->%Nat.eqb_eq]. apply andb_true_iff in Hpt as [Hs'%Nat.eqb_eq He'%Nat.eqb_eq].
  pose proof (Hu _ _ _ E' He') as Hr'. rewrite Hs' in Hr'. by simplify_eq.
Qed.
Lemma valid1_none t pos sq e r : valid1 t pos sq e = None → ¬ validat N (abs t) pos sq e r.
Proof.
  intros Hn (Hs&He&Hp&Hl&Hc). unfold valid1 in Hn. pose proof (Hc 0 Hl) as H0. rewrite Nat.add_0_r in H0.
  rewrite H0 in Hn. rewrite Hs, He, Hp in Hn. rewrite !Nat.eqb_refl in Hn. simpl in Hn.
  destruct (r_len r) as [|n] eqn:El; [lia|]. simpl in Hn. rewrite <-El in Hc.
  assert (forallb (ispart t pos sq e) (seq 0 (S n)) = true) as Hf.
  { apply forallb_forall. intros i Hi. apply in_seq in Hi. unfold ispart. rewrite Hc by lia.
    by rewrite Hs, He, !Nat.eqb_refl. }
  simpl in Hf. by rewrite Hf in Hn.
Qed.
Lemma scan_some fuel t R e pos sq l : one_each t R e → scan fuel t e pos sq = Some l →
  valids N (abs t) e pos sq l ∧ (∀ r, ¬ validat N (abs t) (pos + sum_list (r_len <$> l)) (sq + length l) e r) ∧
  ∀ r, r ∈ l → r ∈ R.
Proof.
  intros Hu. revert pos sq l. induction fuel as [|fuel IH]; intros pos sq l; simpl;
    (destruct (valid1 t pos sq e) as [r|] eqn:E;
     [|intros [= <-]; split; [done|]; split; [|by intros r ?%elem_of_nil]; simpl; intros r;
       rewrite !Nat.add_0_r; by apply valid1_none]); [done|].
  destruct (scan fuel t e _ _) as [l'|] eqn:Es; [|done]. intros [= <-].
  destruct (IH _ _ _ Es) as (H1&H2&H3). destruct (valid1_some _ _ _ _ _ _ Hu E) as [Hv Hr]. split_and!.
  - done.
  - intros r'. csimpl. rewrite Nat.add_assoc, <-Nat.add_succ_comm. apply H2.
  - intros r' [->|Hin]%elem_of_cons; [by eapply elem_of_list_lookup_2|auto].
Qed.
Lemma valids_ext t d e pos sq l : log_is t d → valids N (abs t) e pos sq l → valids N d e pos sq l.
Proof.
  intros H. revert pos sq. induction l as [|r l IH]; intros pos sq; simpl; [done|].
  intros [? ?]. split; [by eapply validat_ext|auto].
Qed.
Lemma scan_chain fuel t d R h l : log_is t d → one_each t R (h_rep h) →
  scan fuel t (h_rep h) (h_pos h) (h_tail h) = Some l → chain N d h l ∧ ∀ r, r ∈ l → r ∈ R.
Proof.
  intros Hlog Hu Hs. destruct (scan_some _ _ _ _ _ _ _ Hu Hs) as (H1&H2&H3). split; [|done]. split.
  - by eapply valids_ext.
  - intros r Hv. eapply H2. by eapply validat_ext'.
Qed.
Lemma oall_intro p : (∀ o, p o = true) → oall p = true.
Proof. intros H. unfold oall. by rewrite !H. Qed.
Lemma matchb_spec t d r : home_eq t d → (∀ b, ¬ knows t b → r_eff r b = ENone) → matchb t r = true ↔ matches d r.
Proof.
  intros Hh Hn. split.
  - intros Hm b c fr Hc o. destruct (tmem (t_home t) b) eqn:Hk; [|rewrite Hn in Hc; [done|by apply not_knows]].
    apply tmem_keys, (forallb_in _ _ _ Hm) in Hk. rewrite Hc in Hk.
    rewrite <-Hh. by apply Nat.eqb_eq, (oall_true _ Hk o).
  - intros Hm. apply forallb_forall. intros b _. destruct (r_eff r b) as [| | |[] c fr] eqn:E; try done.
    apply oall_intro. intros o. rewrite Hh. by apply Nat.eqb_eq, (Hm _ _ _ E).
Qed.
Lemma cutidx_cutat t d h l : home_eq t d → (∀ r b, r ∈ l → ¬ knows t b → r_eff r b = ENone) →
  cutat d h l (cutidx t (proved h l) l).
Proof.
  intros Hh Hn. unfold cutat. generalize (proved h l). intros p. induction l as [|r l IH]; csimpl.
  - split; [done|]. split; [intros j r Hj; by rewrite lookup_nil in Hj|by left].
  - assert (matchb t r = true ↔ matches d r) as Hm by (apply matchb_spec; [done|]; intros b; apply Hn; by left).
    destruct ((p <=? r_seq r) && negb (matchb t r)) eqn:E.
    + apply andb_true_iff in E as [E1%Nat.leb_le E2%negb_true_iff]. split; [lia|]. split; [lia|].
      right. exists r. split; [done|]. split; [done|]. rewrite <-Hm, E2. done.
    + destruct IH as (I1&I2&I3); [intros r' b Hr'; apply Hn; by right|]. split; [lia|]. split.
      * intros [|j] r' Hj Hlt Hp; simpl in Hj; [injection Hj as <-|eapply I2; eauto; lia].
        apply Hm. apply Nat.leb_le in Hp. rewrite Hp in E. simpl in E. by apply negb_false_iff.
      * destruct I3 as [->|(r'&?&?&?)]; [by left|right; eauto].
Qed.
Lemma best_isbest t d i h : log_is t d → best t = Some (i, h) → isbest (λ j, cur (hdrs d j)) i h.
Proof.
  intros [_ H]. unfold best, isbest. rewrite <-!H. simpl.
  destruct (cur (t_h0 t)) as [x|] eqn:E0, (cur (t_h1 t)) as [y|] eqn:E1; try done.
  - destruct (h_gen y <? h_gen x) eqn:E; [|destruct (h_gen x <? h_gen y) eqn:E']; intros [= <- <-]; simpl;
      rewrite ?E0, ?E1; (split; [done|]); intros ? [= <-]; by apply Nat.ltb_lt.
  - intros [= <- <-]. simpl. by rewrite E0, E1.
  - intros [= <- <-]. simpl. by rewrite E0, E1.
Qed.
(** The records of a verdict are there. *)
Lemma judged_valids d R e k : wfR N R → k ≤ length R → ∀ n m, m + n = k → slots_ok N d R e m k →
  valids N d e (posn R m) m (drop m (take k R)).
Proof.
  intros Hwf Hk. induction n as [|n IH]; intros m Ht Hs.
  - rewrite drop_ge; [done|]. rewrite take_length. lia.
  - destruct (lookup_lt_is_Some_2 R m) as [r Hr]; [lia|].
    rewrite (drop_S _ r); [|rewrite lookup_take by lia; done]. simpl.
    destruct (Hwf _ _ Hr) as (?&_&Hp&?&_). destruct (Hs m r) as [? Hx]; [lia|done|]. split.
    + split_and!; try done. intros i Hi. rewrite <-Hp. apply Hx; [done|apply poss_cur].
    + rewrite <-(posn_S _ _ _ Hr). apply IH; [lia|]. intros j r' Hj. apply Hs. lia.
Qed.
End scan.
