(** An executable checker for traces of the running journal, proved sound: a trace that it
    accepts is a trace of the model, so the theorems hold for it and for every cut of it.
    Here a block has one byte: its content's name (a hash). Replay of single bytes is the
    model's concern; order, completion, proof and reuse are the trace's. *)
From stdpp Require Import prelude functions list.
From Steadfast Require Import Disk Replay Journal Inv Recovery Run Refine.
From Coq Require Import Extraction ExtrOcamlBasic ExtrOcamlNatInt.

Notation jst := (@st nat unit nat).
Notation jdisk := (@disk nat unit nat).
Notation jvol := (@vol nat unit nat).
Notation jrec := (@rec nat unit nat).

(** ** Flush snapshots never run ahead of completion *)
Section snaps.
Context (N : nat) (d0 : nat → option (unit → nat)).
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
Definition kp_le (k : @kpc nat unit nat) d : Prop := match k with KF _ _ sn | KHF _ sn => sn_le sn d | _ => True end.
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
  intros (Hh&?&?). split; split_and!; try done; intros b o; simpl; unfold wrm; destruct (img b); try done; first [by apply (proj1 (cwf_begin _ _ _ (Hh b o)))|by apply (proj2 (cwf_begin _ _ _ (Hh b o)))|apply Hh].
Qed.
Lemma dwf_fim img H G D : dwf (Disk H G D) → dwf (Disk (fim img H) G D) ∧ dle (Disk H G D) (Disk (fim img H) G D).
Proof.
  intros (Hh&?&?). split; split_and!; try done; intros b o; simpl; unfold fim; destruct (img b); try done; first [by apply (proj1 (cwf_finish _ (Hh b o)))|by apply (proj2 (cwf_finish _ (Hh b o)))|apply Hh].
Qed.
Lemma dwf_wrs r H G D : dwf (Disk H G D) → dwf (Disk H (wrs N r G) D) ∧ dle (Disk H G D) (Disk H (wrs N r G) D).
Proof.
  intros (?&Hs&?). split; split_and!; try done; intros i; simpl; unfold wrs; destruct (part _ _ _ _); try done; first [by apply (proj1 (cwf_begin _ _ _ (Hs i)))|by apply (proj2 (cwf_begin _ _ _ (Hs i)))|apply Hs].
Qed.
Lemma dwf_fis r H G D : dwf (Disk H G D) → dwf (Disk H (fis N r G) D) ∧ dle (Disk H G D) (Disk H (fis N r G) D).
Proof.
  intros (?&Hs&?). split; split_and!; try done; intros i; simpl; unfold fis; destruct (part _ _ _ _); try done; first [by apply (proj1 (cwf_finish _ (Hs i)))|by apply (proj2 (cwf_finish _ (Hs i)))|apply Hs].
Qed.
Lemma dwf_wrh i x H G D : dwf (Disk H G D) → dwf (Disk H G (wrh i x D)) ∧ dle (Disk H G D) (Disk H G (wrh i x D)).
Proof.
  intros (?&?&Hd). split; split_and!; try done; intros j; simpl; unfold wrh; case_decide; try done; first [by apply (proj1 (cwf_begin _ _ _ (Hd j)))|by apply (proj2 (cwf_begin _ _ _ (Hd j)))|apply Hd].
Qed.
Lemma dwf_fih i H G D : dwf (Disk H G D) → dwf (Disk H G (fih i D)) ∧ dle (Disk H G D) (Disk H G (fih i D)).
Proof.
  intros (?&?&Hd). split; split_and!; try done; intros j; simpl; unfold fih; case_decide; try done; first [by apply (proj1 (cwf_finish _ (Hd j)))|by apply (proj2 (cwf_finish _ (Hd j)))|apply Hd].
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
End snaps.

(** ** The checker *)
Inductive entry := XPatch (z : bool) (v : nat) | XFree (rv : bool) | XCover (chk : bool) (v : nat) (fr : bool).
Inductive ev :=
  | EData (b v : nat)              (** a write around the log begins *)
  | EDataDone (b : nat)            (** and is complete *)
  | ELay (ep seq pos len fl : nat) (es : list (nat * entry))  (** a record is laid, its write begins *)
  | ECommitFlush                   (** the record is complete, the flush begins *)
  | EAck                           (** the flush has succeeded: acknowledged *)
  | ERelease (b : nat)             (** the block leaves the quarantine *)
  | ERead (b v : nat)              (** a committed block is read *)
  | ERound                         (** a checkpoint chooses its images *)
  | EHome (b v : nat)              (** it writes one *)
  | ERoundFlush                    (** home writes are complete, the flush begins *)
  | ETail (gen ep tail pos fl : nat)  (** the flush has succeeded, a tail header's write begins *)
  | ETailFlush                     (** the header is complete, the flush begins *)
  | ERoundEnd.                     (** the flush has succeeded: the log before the tail is free *)

Definition eff_of (x : entry) : eff unit nat :=
  match x with
  | XPatch z v => EPatch z (λ _, Some v)
  | XFree rv => EFree rv
  | XCover chk v fr => ECover chk (λ _, v) fr
  end.
Fixpoint effs (l : list (nat * entry)) (b : nat) : eff unit nat :=
  match l with [] => ENone | (a, x) :: l => if decide (a = b) then eff_of x else effs l b end.

Global Instance stat_dec : EqDecision stat.
Proof. solve_decision. Defined.

Section exec.
Context (N : nat) (d0 : nat → option (unit → nat)).
Notation step := (step 0 N d0).
Notation steps := (steps 0 N d0).
Notation L := (L 0 d0).
Notation dt v := (h_tail (hc v)) (only parsing).

Definition layokb (d : jdisk) (R : list jrec) (v : jvol) (r : jrec) (b : nat) : bool :=
  match r_eff r b with
  | ENone => true
  | EPatch z _ => if z then bool_decide (stt v b = Used ∨ stt v b = Avail) else bool_decide (stt v b = Used)
  | EFree rv => bool_decide (stt v b = Used ∨ stt v b = Avail) &&
      (rv || negb (tch (sg R (dt v) (length R) b)))
  | ECover chk c _ => bool_decide (stt v b = Claimed ∧ cur (home d b ()) = c () ∧
      don (home d b ()) = length (old (home d b ())) ∧
      (chk = false → length (old (home d b ())) ≤ low (home d b ())))
  end.
(** A flush's end: what its snapshot names has persisted, and no more than that. *)
Definition lift {A} (n : nat) (c : cell A) : cell A := Cell (old c) (cur c) (low c `max` n) (don c) (bad c).
Definition dsync (sn : snap) (d : jdisk) : jdisk :=
  Disk (λ b o, lift (sn_home sn b o) (home d b o)) (λ i, lift (sn_slots sn i) (slots d i)) (λ i, lift (sn_hdrs sn i) (hdrs d i)).
Definition chk (P : Prop) `{!Decision P} (s : jst) : option jst := if decide P then Some s else None.

Definition exec (s : jst) (e : ev) : option jst :=
  match s with
  | St (Disk H G D as d) R a (Run v) =>
    match e with
    | EData b x => chk (stt v b = Avail)
        (St (Disk (wrm (one b (λ _, x)) H) G D) R a (Run (Vol (nh v) (hc v) (upd_st (stt v) b Claimed) (cp v) (kp v))))
    | EDataDone b => chk (stt v b = Claimed) (St (Disk (fim (one b (λ _, 0)) H) G D) R a (Run v))
    | ELay ep seq pos len fl l =>
        let r : jrec := Rec ep seq pos len fl (effs l) in
        match cp v with
        | CIdle => chk (seq = length R ∧ fl = a ∧ ep = h_ep (hc v) ∧ pos = posn R (length R) ∧ 0 < len ∧
              posn R (length R) + len ≤ posn R (dt v) + N ∧ Forall (λ b, layokb d R v r b = true) l.*1)
            (St (Disk H (wrs N r G) D) (R ++ [r]) a
              (Run (Vol (nh v) (hc v) (λ b, stat_after (length R) (r_eff r b) (stt v b)) CW (kp v))))
        | _ => None
        end
    | ECommitFlush => match cp v, R !! a with
        | CW, Some r => Some (St (Disk H (fis N r G) D) R a
              (Run (Vol (nh v) (hc v) (stt v) (CF (snapof (Disk H (fis N r G) D))) (kp v))))
        | _, _ => None
        end
    | EAck => match cp v with
        | CF sn => Some (St (dsync sn d) R (length R) (Run (Vol (nh v) (hc v) (stt v) CIdle (kp v))))
        | _ => None
        end
    | ERelease b => match kp v, stt v b with
        | KIdle, Quar s wp => chk (s < a ∨ (s = a ∧ (wp = false ∨ a ≤ dt v)))
            (St d R a (Run (Vol (nh v) (hc v) (upd_st (stt v) b Avail) (cp v) (kp v))))
        | _, _ => None
        end
    | ERead b x => chk (stt v b = Used ∧ x =
          if tch (sg R (dt v) (length R) b) then from_option (λ c, c ()) x (L R (length R) b)
          else cur (home d b ())) s
    | ERound => match kp v with
        | KIdle => chk (dt v < a)
            (St (Disk (wrm (kimg 0 d0 R (dt v) a) H) G D) R a
              (Run (Vol (nh v) (hc v) (stt v) (cp v) (KW a (kimg 0 d0 R (dt v) a)))))
        | _ => None
        end
    | EHome b x => match kp v with
        | KW u img => chk ((λ c : unit → nat, c ()) <$> img b = Some x) s
        | _ => None
        end
    | ERoundFlush => match kp v with
        | KW u img => Some (St (Disk (fim img H) G D) R a
            (Run (Vol (nh v) (hc v) (stt v) (cp v) (KF u img (snapof (Disk (fim img H) G D))))))
        | _ => None
        end
    | ETail gen ep tl pos fl => match kp v with
        | KF u img sn =>
            let d' := dsync sn d in
            chk (gen = S (h_gen (hc v)) ∧ ep = h_ep (hc v) ∧ tl = u ∧ pos = posn R u ∧ fl = u)
              (St (Disk (home d') (slots d') (wrh (negb (nh v)) (hnew v R u) (hdrs d'))) R a
                (Run (Vol (nh v) (hc v) (stt v) (cp v) (KH u))))
        | _ => None
        end
    | ETailFlush => match kp v with
        | KH u => Some (St (Disk H G (fih (negb (nh v)) D)) R a
            (Run (Vol (nh v) (hc v) (stt v) (cp v) (KHF u (snapof (Disk H G (fih (negb (nh v)) D)))))))
        | _ => None
        end
    | ERoundEnd => match kp v with
        | KHF u sn => Some (St (dsync sn d) R a (Run (Vol (negb (nh v)) (hnew v R u) (stt v) (cp v) KIdle)))
        | _ => None
        end
    end
  | _ => None
  end.

(** The visible label of an event. *)
Definition lab (e : ev) : list (@label nat unit nat) :=
  match e with
  | ELay ep seq pos len fl l => [Lay (Rec ep seq pos len fl (effs l))]
  | EAck => [Tau; Ack]
  | ERead b x => [Read b (λ _, x)]
  | ETail _ _ _ _ _ | ERoundEnd => [Tau; Tau]
  | _ => [Tau]
  end.

Lemma effs_none l b : b ∉ l.*1 → effs l b = ENone.
Proof.
  induction l as [|[a x] l IH]; csimpl; [done|]. intros [Hn Hl]%not_elem_of_cons.
  rewrite decide_False by done. by apply IH.
Qed.
Lemma layokb_sound d R v r b : layokb d R v r b = true → layok d R v r b.
Proof.
  unfold layokb, layok. destruct (r_eff r b) as [|[] p|rv|ck c fr].
  - done.
  - by intros ?%bool_decide_eq_true.
  - by intros ?%bool_decide_eq_true.
  - intros [H1%bool_decide_eq_true H2]%andb_true_iff. split; [done|]. intros ->. simpl in H2.
    by apply negb_true_iff.
  - intros (H1&H2&H3&H4)%bool_decide_eq_true. split; [done|]. by intros [].
Qed.
Lemma persist_lift {A} n (c : cell A) : n ≤ don c → persist c (lift n c).
Proof. intros. unfold persist. simpl. split_and!; done || lia. Qed.
Lemma dsync_ok sn d : sn_le sn d → dpersist d (dsync sn d) ∧ flushed sn (dsync sn d).
Proof.
  intros (H1&H2&H3). split; split_and!; intros; simpl; try (apply persist_lift; auto); lia.
Qed.
Lemma persist_refl d : @dpersist nat unit nat d d.
Proof. split_and!; intros; unfold persist; split_and!; done || lia. Qed.
Lemma steps_one l s s' : step l s s' → steps [l] s s'.
Proof. intros. econstructor; [done|constructor]. Qed.
Lemma steps_two l1 l2 s1 s2 s3 : step l1 s1 s2 → step l2 s2 s3 → steps [l1; l2] s1 s3.
Proof. intros. econstructor; [done|]. by apply steps_one. Qed.

Lemma exec_sound s e s' : W s → exec s e = Some s' → steps (lab e) s s'.
Proof.
  intros [_ HW]. destruct s as [[H G D] R a [v| | | |]]; try done. simpl in HW. destruct HW as [Hcp Hkp].
  destruct e as [b x|b|ep seq pos len fl l| | |b|b x| |b x| |gen ep tl pos fl| |]; simpl; unfold chk.
  - case_decide; intros [= <-]. apply steps_one. by constructor.
  - case_decide; intros [= <-]. apply steps_one. by constructor.
  - destruct (cp v) eqn:E; try done. case_decide as Hc; intros [= <-]. destruct Hc as (->&->&->&->&?&?&Hl).
    apply steps_one. constructor; simpl; try done. intros b. destruct (decide (b ∈ l.*1)) as [Hb|Hb].
    + apply layokb_sound. rewrite Forall_forall in Hl. by apply Hl.
    + unfold layok. simpl. by rewrite effs_none.
  - destruct (cp v) eqn:E; try done. destruct (R !! a) eqn:ER; intros [= <-]. apply steps_one. by constructor.
  - destruct (cp v) as [| |sn] eqn:E; intros [= <-]. destruct (dsync_ok sn _ Hcp). eapply steps_two.
    + by apply (s_persist 0 N d0 _ (dsync sn (Disk H G D))).
    + by econstructor.
  - destruct (kp v) eqn:E; try done. destruct (stt v b) eqn:Es; try done. case_decide; intros [= <-].
    apply steps_one. rewrite <-E. by econstructor.
  - case_decide as Hc; intros [= <-]. destruct Hc as [Hu Hc]. apply steps_one. constructor; [done|]. intros [].
    destruct (tch _); [|done]. intros c' HL. by rewrite HL in Hc.
  - destruct (kp v) eqn:E; try done. case_decide; intros [= <-]. apply steps_one. by constructor.
  - destruct (kp v) eqn:E; try done. case_decide; intros [= <-]. apply steps_one. constructor. apply persist_refl.
  - destruct (kp v) eqn:E; intros [= <-]. apply steps_one. by constructor.
  - destruct (kp v) as [| |u img sn| |] eqn:E; try done. case_decide; intros [= <-]. destruct (dsync_ok sn _ Hkp).
    eapply steps_two; [by apply (s_persist 0 N d0 _ (dsync sn (Disk H G D)))|]. by econstructor.
  - destruct (kp v) eqn:E; intros [= <-]. apply steps_one. by constructor.
  - destruct (kp v) as [| | | |u sn] eqn:E; intros [= <-]. destruct (dsync_ok sn _ Hkp).
    eapply steps_two; [by apply (s_persist 0 N d0 _ (dsync sn (Disk H G D)))|]. by econstructor.
Qed.

Fixpoint execs (s : jst) (l : list ev) : option jst :=
  match l with [] => Some s | e :: l => match exec s e with Some s => execs s l | None => None end end.
Lemma steps_app l1 l2 s1 s2 s3 : steps l1 s1 s2 → steps l2 s2 s3 → steps (l1 ++ l2) s1 s3.
Proof. induction 1; [done|]. intros. simpl. econstructor; eauto. Qed.
Lemma W_steps l s s' : W s → steps l s s' → W s'.
Proof. intros Hw Hs. induction Hs; eauto using W_step. Qed.
Lemma init_W s : init 0 d0 s → (∀ b o, don (home (dk s) b o) = length (old (home (dk s) b o))) → W s.
Proof.
  intros (d&->&_&Hq&Hs&H1&H2) _. split; [|done]. simpl. split_and!.
  - intros b o. unfold cwf. destruct (Hq b o) as [-> _]. done.
  - intros i. unfold cwf. rewrite Hs. done.
  - intros []; unfold cwf; rewrite ?H1, ?H2; done.
Qed.
Lemma execs_sound l s s' : W s → execs s l = Some s' → steps (concat (lab <$> l)) s s'.
Proof.
  revert s. induction l as [|e l IH]; intros s Hw; simpl; [intros [= ->]; constructor|].
  destruct (exec s e) as [s1|] eqn:E; [|done]. intros Hx. pose proof (exec_sound _ _ _ Hw E) as H1.
  csimpl. eapply steps_app; [done|]. apply IH; [|done]. by eapply W_steps.
Qed.
(** An accepted trace refines the specification ... *)
Theorem accepted l s s' :
  init 0 d0 s → execs s l = Some s' → spec_steps 0 d0 (concat (lab <$> l)) ([], 0) (rs s', lb s').
Proof.
  intros Hi Hx. eapply journal_refines; [done|]. apply execs_sound; [|done]. apply init_W; [done|].
  destruct Hi as (d&->&_&Hq&_). intros b o. simpl. by destruct (Hq b o).
Qed.
(** ... and so does each of its prefixes, cut at any point, with any recovery behind it: the
    opening keeps everything that was acknowledged before the cut. *)
Theorem accepted_cut l1 l2 s s1 s' ls k s2 s3 :
  init 0 d0 s → execs s (l1 ++ l2) = Some s' → execs s l1 = Some s1 →
  Forall (λ x, match x with Lay _ | Ack | Open _ => False | _ => True end) ls →
  steps (Crash :: ls) s1 s2 → step (Open k) s2 s3 →
  lb s1 ≤ k ≤ length (rs s1) ∧ rs s3 = take k (rs s1).
Proof.
  intros Hi _ Hx Hno Hs Ho.
  assert (MI 0 N d0 s1) as Hm.
  { eapply steps_MI; [by apply init_MI|]. apply execs_sound; [|done]. apply init_W; [done|].
    destruct Hi as (d&->&_&Hq&_). intros b o. simpl. by destruct (Hq b o). }
  assert (∀ l t t', Forall (λ x, match x with Lay _ | Ack | Open _ => False | _ => True end) l →
    MI 0 N d0 t → steps l t t' → MI 0 N d0 t' ∧ rs t' = rs t ∧ lb t' = lb t) as Hq.
  { clear. intros l t t' Hno Hm Hs. induction Hs as [|x l t1 t2 t3 H1 H2 IH]; [done|].
    apply Forall_cons in Hno as [Hx Hno]. destruct (step_ok _ _ _ _ _ _ Hm H1) as [Hm2 Hsp].
    destruct (IH Hno Hm2) as (?&E1&E2). split; [done|]. rewrite E1, E2. by inversion Hsp; subst. }
  destruct (Hq (Crash :: ls) s1 s2) as (Hm2&<-&<-); [by apply Forall_cons_2|done|done|].
  destruct (step_ok _ _ _ _ _ _ Hm2 Ho) as [_ Hsp]. inversion Hsp; subst. split; [lia|congruence].
Qed.
End exec.

(** A new volume of [n] blocks in use (their contents named by [f]) and others free. *)
Definition d0_of (f : nat → option nat) : nat → option (unit → nat) :=
  λ b, match f b with Some v => Some (λ _, v) | None => None end.
Definition start (f : nat → option nat) : jst :=
  St (Disk (λ b _, Cell [] (match f b with Some v => v | None => 0 end) 0 0 false)
       (λ _, Cell [] None 0 0 false) (λ i, Cell [] (if i then None else Some h0) 0 0 false))
     [] 0 (Run (Vol false h0 (opened 0 (d0_of f) [] 0) CIdle KIdle)).
Theorem start_init f : init 0 (d0_of f) (start f).
Proof.
  eexists. split; [reflexivity|]. simpl. split_and!; try done.
  intros b [] c. unfold d0_of. destruct (f b); [|done]. by intros [= <-].
Qed.
(** The model does recover: a new volume can be cut and opened again. *)
Theorem start_recovers n f : ∃ s2 s3,
  steps 0 n (d0_of f) [Crash; Tau] (start f) s2 ∧ step 0 n (d0_of f) (Open 0) s2 s3.
Proof.
  eexists _, _. split.
  - eapply steps_two.
    + apply (s_crash 0 n (d0_of f) _ (dclean (dk (start f)))). split_and!; intros; apply survives_clean.
    + apply (r_nothing 0 n (d0_of f) false h0 []); [split; [done|]| | |].
      * simpl. done.
      * done.
      * split; [done|]. intros r (_&_&_&Hl&Hc). specialize (Hc 0 Hl). simpl in Hc. done.
      * split; [done|]. split; [done|]. by left.
  - eapply r_open. reflexivity.
Qed.
Definition check_event (n : nat) (f : nat → option nat) (s : jst) (e : ev) : option jst := exec n (d0_of f) s e.
(** What the checkpoint under way must write to block [b]; the reader of the trace sees to it
    that nothing is left out. *)
Definition round_image (s : jst) (b : nat) : option nat :=
  match md s with
  | Run v => match kp v with KW _ img => (λ c : unit → nat, c ()) <$> img b | _ => None end
  | _ => None
  end.
