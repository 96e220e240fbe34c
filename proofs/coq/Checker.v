(** An executable checker for traces of the running journal, proved sound: a trace that it
    accepts is a trace of the model, so the theorems hold for it and for every cut of it.
    It says why it refuses an event. *)
From stdpp Require Import prelude functions list.
From Steadfast Require Import Disk Replay Journal Inv Recovery Run Refine CheckDevice.

(** ** Events, and what they must be *)
Inductive entry := XPatch (z : bool) (v : oct (option nat)) | XFree (rv : bool) | XCover (chk : bool) (v : oct nat) (fr : bool).
Inductive ev :=
  | EData (b : nat) (v : oct nat)         (** a write around the log begins *)
  | EDataDone (b : nat)                   (** and is complete *)
  | ELay (ep sq pos len fl : nat) (l : list (nat * entry))  (** a record is laid, its write begins *)
  | ELayDone                              (** the record's write is complete *)
  | EFlush (f : nat)                      (** any thread's flush begins *)
  | EFlushed (f : nat)                    (** and has succeeded *)
  | EAck                                  (** the record is acknowledged *)
  | ERelease (b : nat)                    (** the block leaves the quarantine *)
  | ERead (b : nat) (v : oct (option nat))  (** a committed block is read, some sectors of it looked at *)
  | ERound                                (** a checkpoint chooses its images *)
  | EHome (b : nat) (v : oct nat)         (** a home write of it begins *)
  | EHomeDone (b : nat)                   (** and is complete *)
  | ETail (gen ep tl pos fl : nat)        (** a tail header's write begins *)
  | ETailDone                             (** and is complete *)
  | ERoundEnd.                            (** the log before the tail is free *)

(** Why an event is refused. *)
Inductive field := FEpoch | FSeq | FPos | FLen | FFlushed | FGen | FTail | FRep | FEnd | FKept.
Inductive why :=
  | WField (f : field) (want : nat)       (** a number is not what it must be *)
  | WRoom (free : nat)                    (** the record overtakes the durable tail *)
  | WTwice (b : nat)                      (** named twice *)
  | WStat (b : nat) (x : stat)            (** the block's state does not allow it *)
  | WPatched (b : nat)                    (** freed without revoke, but the log has patches of it *)
  | WHolds (b : nat) (o : sector) (v : nat) (** the sector is, or must be, [v] *)
  | WWriting (b : nat)                    (** the block's write is not complete *)
  | WUnflushed (b : nat)                  (** the block's data is not durable *)
  | WCommitter (x : nat)                  (** the committer is elsewhere: 0 idle, 1 record under way, 2 written *)
  | WRound (x : nat)                      (** so is the checkpoint: 0 none, 1 home writes, 2 home, 3 header under way, 4 written *)
  | WFlush                                (** no flush that began after the writes waited for has ended *)
  | WFlushName (f : nat)                  (** such a flush is under way already, or is not *)
  | WProof (b : nat)                      (** the block is not proved free *)
  | WNothing                              (** nothing to checkpoint *)
  | WNoImage (b : nat)                    (** not a block to be written *)
  | WOrder (b : nat)                      (** begun already, or not begun *)
  | WForgotten (b : nat)                  (** a block is not written, or not complete *)
  | WBlockGone (b : nat) (o : sector)     (** no cut leaves that in the sector *)
  | WSlotGone (i : nat)                   (** ... in the block of the log *)
  | WHeaderGone (i : nat)                 (** ... in the header's place *)
  | WNoHeader                             (** no header is valid, or two have one generation *)
  | WPhase (x : nat)                      (** recovery is elsewhere: 0 cut, 1 reading, 2 verdict, 3 replay, 4 empty log, 5 open *)
  | WVerdict (n : nat)                    (** a verdict must be written first: accepted up to [n] *)
  | WNoVerdict                            (** nothing is accepted, or a verdict is there *)
  | WEndless.                             (** the chain is longer than what was laid *)
Inductive res (A : Type) := Ok (a : A) | No (w : why).
Arguments Ok {A} _. Arguments No {A} _.

Definition eff_of (x : entry) : eff sector nat :=
  match x with
  | XPatch z v => EPatch z (oget v)
  | XFree rv => EFree rv
  | XCover chk v fr => ECover chk (oget v) fr
  end.
Fixpoint effs (l : list (nat * entry)) (b : nat) : eff sector nat :=
  match l with [] => ENone | (a, x) :: l => if Nat.eqb a b then eff_of x else effs l b end.

Definition ofind (p : sector → bool) : option sector :=
  if p S0 then Some S0 else if p S1 then Some S1 else if p S2 then Some S2 else if p S3 then Some S3 else
  if p S4 then Some S4 else if p S5 then Some S5 else if p S6 then Some S6 else if p S7 then Some S7 else None.
Lemma ofind_none p : ofind p = None → ∀ o, p o = false.
Proof. unfold ofind. intros H. repeat case_match; simplify_eq; by intros []. Qed.
Definition differ (c c' : sector → nat) : option sector := ofind (λ o, negb (c o =? c' o)).
Lemma differ_none c c' : differ c c' = None → ∀ o, c o = c' o.
Proof. intros H o. apply Nat.eqb_eq, negb_false_iff. by apply (ofind_none _ H). Qed.
Fixpoint twice (l : list nat) : option nat :=
  match l with [] => None | a :: l => if existsb (Nat.eqb a) l then Some a else twice l end.
Fixpoint tfind {A} (t : tab A) (a : nat) : option A :=
  match t with [] => None | (b, y) :: t => if Nat.eqb b a then Some y else tfind t a end.
Definition tput {A} (a : nat) (y : A) (t : tab A) : tab A := tmap (λ b x, if Nat.eqb b a then y else x) t.
Definition tdrop {A} (a : nat) (t : tab A) : tab A := List.filter (λ p, negb (Nat.eqb p.1 a)) t.
Fixpoint firstof {A} (p : nat → A → bool) (t : tab A) : option nat :=
  match t with [] => None | (b, y) :: t => if p b y then Some b else firstof p t end.

Lemma tfind_in {A} (t : tab A) a y : tfind t a = Some y → (a, y) ∈ t.
Proof.
  induction t as [|[b z] t IH]; simpl; [done|]. destruct (Nat.eqb b a) eqn:E.
  - apply Nat.eqb_eq in E as ->. intros [= ->]. by left.
  - intros H. right. by apply IH.
Qed.
Lemma tfind_const {A} (x : A) (l : list nat) b : tfind ((λ b, (b, x)) <$> l) b = if existsb (λ a, a =? b) l then Some x else None.
Proof. induction l as [|a l IH]; csimpl; [done|]. destruct (a =? b); [done|apply IH]. Qed.
Lemma existsb_in l b : existsb (λ a, a =? b) l = true ↔ b ∈ l.
Proof.
  rewrite existsb_exists, elem_of_list_In. split; [|intros H; exists b; by rewrite Nat.eqb_refl].
  by intros (x&Hx&->%Nat.eqb_eq).
Qed.
Lemma tfind_tput {A} b b' (y : A) l : tfind (tput b y l) b' =
  match tfind l b' with Some x => Some (if b' =? b then y else x) | None => None end.
Proof.
  unfold tput, tmap. induction l as [|[a x] l IH]; csimpl; [done|]. destruct (a =? b') eqn:E; [|done].
  apply Nat.eqb_eq in E as ->. done.
Qed.

(** A home write of a checkpoint, or of replay. *)
Inductive phase := Waiting | Writing | Complete.
Definition complete (x : phase) : bool := match x with Complete => true | _ => false end.

Definition vis (l : list jlabel) : list jlabel := List.filter (λ x, match x with Tau => false | _ => true end) l.

(** The state of the checker, while the journal runs. *)
Record run := Rn {
  dsk : tdisk; recs : list jrec; acked : nat; vl : jvol;
  todo : tab phase;      (** the home writes of the checkpoint under way *)
  fly : tab tdisk }.     (** flushes under way, and the disk when they began *)
Definition model (c : run) : jst := St (abs (dsk c)) (recs c) (acked c) (Run (vl c)).

Section exec.
Context (N : nat) (d0 : nat → option (sector → nat)).
Notation step := (step 0 N d0).
Notation steps := (steps 0 N d0).
Notation L := (L 0 d0).
Notation kimg := (kimg 0 d0).
Notation dt v := (h_tail (hc v)) (only parsing).

Definition laywhy (d : jdisk) (R : list jrec) (v : jvol) (r : jrec) (b : nat) : option why :=
  match r_eff r b with
  | ENone => None
  | EPatch z _ => match stt v b with
      | Used => None
      | Avail => if z then None else Some (WStat b Avail)
      | x => Some (WStat b x)
      end
  | EFree rv => match stt v b with
      | Used | Avail => if rv then None else if tch (sg R (dt v) (length R) b) then Some (WPatched b) else None
      | x => Some (WStat b x)
      end
  | ECover chk c _ => match stt v b with
      | Claimed =>
          match differ (λ o, cur (home d b o)) c with
          | Some o => Some (WHolds b o (cur (home d b o)))
          | None =>
              if negb (oall (λ o, don (home d b o) =? length (old (home d b o)))) then Some (WWriting b)
              else if chk || oall (λ o, length (old (home d b o)) <=? low (home d b o)) then None else Some (WUnflushed b)
          end
      | x => Some (WStat b x)
      end
  end.
Fixpoint laywhys (d : jdisk) (R : list jrec) (v : jvol) (r : jrec) (l : list nat) : option why :=
  match l with
  | [] => None
  | b :: l => match laywhy d R v r b with Some w => Some w | None => laywhys d R v r l end
  end.
Definition cplace (c : @cpc nat sector) : nat := match c with CIdle => 0 | CW => 1 | CF _ => 2 end.
Definition kplace (k : @kpc nat sector nat) : nat :=
  match k with KIdle => 0 | KW _ _ => 1 | KF _ _ _ => 2 | KH _ => 3 | KHF _ _ => 4 end.

(** What a read of a used block returns. *)
Definition seen (c : run) (b : nat) (o : sector) : nat :=
  let R := recs c in
  if tch (sg R (dt (vl c)) (length R) b) then match L R (length R) b with Some x => x o | None => 0 end
  else cur (home (abs (dsk c)) b o).
Definition look (c : run) (b : nat) (v : oct (option nat)) (o : sector) : nat :=
  match oget v o with Some x => x | None => seen c b o end.

(** All home writes of the round are complete: the state from which a flush must begin. *)
Definition homed (c : run) : run :=
  match kp (vl c) with
  | KW u img =>
      let v := vl c in let d := abs (dsk c) in
      Rn (tfim img (dsk c)) (recs c) (acked c)
        (Vol (nh v) (hc v) (stt v) (cp v) (KF u img (snapof (Disk (fim img (home d)) (slots d) (hdrs d))))) (todo c) (fly c)
  | _ => c
  end.

Definition exec (c : run) (e : ev) : res run :=
  let t := dsk c in let d := abs t in let R := recs c in let a := acked c in let v := vl c in
  match e with
  | EData b x =>
      match stt v b with
      | Avail => Ok (Rn (twrm (one b (oget x)) (tknow [b] [] t)) R a
          (Vol (nh v) (hc v) (upd_st (stt v) b Claimed) (cp v) (kp v)) (todo c) (fly c))
      | s => No (WStat b s)
      end
  | EDataDone b =>
      match stt v b with
      | Claimed => Ok (Rn (tfim (one b (λ _, 0)) t) R a v (todo c) (fly c))
      | s => No (WStat b s)
      end
  | ELay ep sq pos len fl l =>
      let r : jrec := Rec ep sq pos len fl (effs l) in
      let n := length R in let p := posn R n in let bound := posn R (dt v) + N in
      match cp v with
      | CIdle =>
          if negb (sq =? n) then No (WField FSeq n) else
          if negb (fl =? a) then No (WField FFlushed a) else
          if negb (ep =? h_ep (hc v)) then No (WField FEpoch (h_ep (hc v))) else
          if negb (pos =? p) then No (WField FPos p) else
          if negb (1 <=? len) then No (WField FLen 1) else
          if negb (p + len <=? bound) then No (WRoom (bound - p)) else
          match twice l.*1 with
          | Some b => No (WTwice b)
          | None =>
              match laywhys d R v r l.*1 with
              | Some w => No w
              | None => Ok (Rn (twrs N r (tknow l.*1 ((λ j, (pos + j) `mod` N) <$> seq 0 len) t)) (R ++ [r]) a
                  (Vol (nh v) (hc v) (λ b, stat_after n (r_eff r b) (stt v b)) CW (kp v)) (todo c) (fly c))
              end
          end
      | x => No (WCommitter (cplace x))
      end
  | ELayDone =>
      match cp v, R !! a with
      | CW, Some r => Ok (Rn (tfis N r t) R a
          (Vol (nh v) (hc v) (stt v) (CF (snapof (Disk (home d) (fis N r (slots d)) (hdrs d)))) (kp v)) (todo c) (fly c))
      | x, _ => No (WCommitter (cplace x))
      end
  | EFlush f => if tmem (fly c) f then No (WFlushName f) else Ok (Rn t R a v (todo c) ((f, t) :: fly c))
  | EFlushed f =>
      match tfind (fly c) f with
      | Some sn => Ok (Rn (tsync sn t) R a v (todo c) (tdrop f (fly c)))
      | None => No (WFlushName f)
      end
  | EAck =>
      match cp v with
      | CF sn => if flushedb sn t then Ok (Rn t R (length R) (Vol (nh v) (hc v) (stt v) CIdle (kp v)) (todo c) (fly c))
                 else No WFlush
      | x => No (WCommitter (cplace x))
      end
  | ERelease b =>
      match kp v, stt v b with
      | KIdle, Quar s wp =>
          if (s <? a) || ((s =? a) && (negb wp || (a <=? dt v)))
          then Ok (Rn t R a (Vol (nh v) (hc v) (upd_st (stt v) b Avail) (cp v) (kp v)) (todo c) (fly c))
          else No (WProof b)
      | KIdle, s => No (WStat b s)
      | k, _ => No (WRound (kplace k))
      end
  | ERead b x =>
      match stt v b with
      | Used => match differ (look c b x) (seen c b) with None => Ok c | Some o => No (WHolds b o (seen c b o)) end
      | s => No (WStat b s)
      end
  | ERound =>
      match kp v with
      | KIdle =>
          if dt v <? a then
            let img := kimg R (dt v) a in
            let bs := List.filter (λ b, match img b with Some _ => true | None => false end) (t_home t).*1 in
            let c' := Rn (twrm img t) R a (Vol (nh v) (hc v) (stt v) (cp v) (KW a img)) ((λ b, (b, Waiting)) <$> bs) (fly c) in
            Ok (match bs with [] => homed c' | _ => c' end)
          else No WNothing
      | k => No (WRound (kplace k))
      end
  | EHome b x =>
      match kp v with
      | KW u img =>
          match tfind (todo c) b, img b with
          | Some Waiting, Some y =>
              match differ (oget x) y with
              | None => Ok (Rn t R a v (tput b Writing (todo c)) (fly c))
              | Some o => No (WHolds b o (y o))
              end
          | Some _, _ => No (WOrder b)
          | None, _ => No (WNoImage b)
          end
      | k => No (WRound (kplace k))
      end
  | EHomeDone b =>
      match kp v with
      | KW u img =>
          match tfind (todo c) b with
          | Some Writing =>
              let l := tput b Complete (todo c) in
              let c' := Rn t R a v l (fly c) in
              Ok (match firstof (λ _ x, negb (complete x)) l with None => homed c' | Some _ => c' end)
          | Some _ => No (WOrder b)
          | None => No (WNoImage b)
          end
      | k => No (WRound (kplace k))
      end
  | ETail gen ep tl pos fl =>
      match kp v with
      | KF u img sn =>
          if negb (flushedb sn t) then No WFlush else
          let h := hnew v R u in
          if negb (gen =? h_gen h) then No (WField FGen (h_gen h)) else
          if negb (ep =? h_ep h) then No (WField FEpoch (h_ep h)) else
          if negb (tl =? h_tail h) then No (WField FTail (h_tail h)) else
          if negb (pos =? h_pos h) then No (WField FPos (h_pos h)) else
          if negb (fl =? h_fl h) then No (WField FFlushed (h_fl h)) else
          Ok (Rn (twrh (negb (nh v)) h t) R a (Vol (nh v) (hc v) (stt v) (cp v) (KH u)) (todo c) (fly c))
      | KW _ _ => match firstof (λ _ x, negb (complete x)) (todo c) with
          | Some b => No (WForgotten b)
          | None => No (WRound 1)
          end
      | k => No (WRound (kplace k))
      end
  | ETailDone =>
      match kp v with
      | KH u => Ok (Rn (tfih (negb (nh v)) t) R a
          (Vol (nh v) (hc v) (stt v) (cp v) (KHF u (snapof (Disk (home d) (slots d) (fih (negb (nh v)) (hdrs d)))))) (todo c) (fly c))
      | k => No (WRound (kplace k))
      end
  | ERoundEnd =>
      match kp v with
      | KHF u sn => if flushedb sn t
          then Ok (Rn t R a (Vol (negb (nh v)) (hnew v R u) (stt v) (cp v) KIdle) (todo c) (fly c))
          else No WFlush
      | k => No (WRound (kplace k))
      end
  end.

(** The visible labels of an event. *)
Definition lab (c : run) (e : ev) : list jlabel :=
  match e with
  | ELay ep sq pos len fl l => [Lay (Rec ep sq pos len fl (effs l))]
  | EAck => [Ack]
  | ERead b x => [Read b (look c b x)]
  | _ => []
  end.

(** ** Soundness *)
Definition vsteps (ls : list jlabel) (s s' : jst) : Prop := ∃ l, steps l s s' ∧ vis l = ls.
Lemma vsteps_nil s : vsteps [] s s.
Proof. exists []. split; [constructor|done]. Qed.
Lemma vis_app l1 l2 : vis (l1 ++ l2) = vis l1 ++ vis l2.
Proof. apply List.filter_app. Qed.
Lemma steps_app l1 l2 s1 s2 s3 : steps l1 s1 s2 → steps l2 s2 s3 → steps (l1 ++ l2) s1 s3.
Proof. induction 1; [done|]. intros. simpl. econstructor; eauto. Qed.
Lemma vsteps_app l1 l2 s1 s2 s3 : vsteps l1 s1 s2 → vsteps l2 s2 s3 → vsteps (l1 ++ l2) s1 s3.
Proof. intros (l&H1&<-) (l'&H2&<-). exists (l ++ l'). split; [by eapply steps_app|apply vis_app]. Qed.
Lemma vsteps_step l s s' : step l s s' → vsteps (vis [l]) s s'.
Proof. intros H. exists [l]. split; [|done]. econstructor; [done|constructor]. Qed.
(** A step, and the model's disk is again what the tables say. *)
Lemma vsteps_to l s d t R a m : step l s (St d R a m) → deq d (abs t) → vsteps (vis [l]) s (St (abs t) R a m).
Proof.
  intros H1 H2. replace (vis [l]) with (vis [l] ++ vis [Tau]) by apply app_nil_r.
  eapply vsteps_app; apply vsteps_step; [done|]. constructor. by apply deq_persist.
Qed.
Lemma W_steps l s s' : W s → steps l s s' → W s'.
Proof. intros Hw Hs. induction Hs; eauto using W_step. Qed.
Lemma W_vsteps l s s' : W s → vsteps l s s' → W s'.
Proof. intros Hw (?&Hs&_). by eapply W_steps. Qed.
Lemma run_vsteps ls s s' v : W s → vsteps ls s s' → Crash ∉ ls → md s = Run v → dle (dk s) (dk s').
Proof.
  intros Hw (l&Hs&<-) Hn Hv. revert v Hv. induction Hs as [|l ls s1 s2 s3 H1 H2 IH]; intros v Hv; [apply dle_refl|].
  destruct (run_dle N d0 _ _ _ v Hw H1) as (Hle&v'&Hv'); [|done|].
  - intros ->. apply Hn. by left.
  - destruct (IH ltac:(by eapply W_step) ltac:(intros Hin; apply Hn; destruct l; simpl; auto; by right) _ Hv') as (?&?&?).
    destruct Hle as (?&?&?). split_and!; intros; etrans; eauto.
Qed.

Definition named (c : run) : Prop := ∀ r b, r ∈ recs c → ¬ knows (dsk c) b → r_eff r b = ENone.
Definition todo_ok (c : run) : Prop := ∀ u img b, kp (vl c) = KW u img → img b ≠ None → b ∈ (todo c).*1.
Record J (c : run) : Prop := {
  j_W : W (model c);
  j_named : named c;
  j_fly : ∀ f sn, (f, sn) ∈ fly c → dle (abs sn) (abs (dsk c));
  j_todo : todo_ok c }.

Lemma effs_none l b : b ∉ l.*1 → effs l b = ENone.
Proof.
  induction l as [|[a x] l IH]; csimpl; [done|]. intros [Hn Hl]%not_elem_of_cons.
  destruct (Nat.eqb a b) eqn:E; [by apply Nat.eqb_eq in E|]. by apply IH.
Qed.
Lemma laywhy_sound d R v r b : laywhy d R v r b = None → layok d R v r b.
Proof.
  unfold laywhy, layok. destruct (r_eff r b) as [|z p|rv|ck c fr]; [done|..].
  - destruct (stt v b); try done; destruct z; try done; intros _; auto.
  - destruct (stt v b) eqn:E; try done; destruct rv; intros Hx; (split; [auto|]); try done;
      intros _; by destruct (tch _).
  - destruct (stt v b); try done. destruct (differ _ _) eqn:Ed; [done|].
    destruct (oall (λ o, don _ =? _)) eqn:Eo; simpl; [|done].
    destruct (ck || _) eqn:Ek; [|done]. intros _. split; [done|]. intros o. split_and!.
    + by apply (differ_none _ _ Ed).
    + by apply Nat.eqb_eq, (oall_true _ Eo o).
    + intros ->. simpl in Ek. by apply Nat.leb_le, (oall_true _ Ek o).
Qed.
Lemma laywhys_sound d R v r l b : laywhys d R v r l = None → b ∈ l → layok d R v r b.
Proof.
  induction l as [|a l IH]; simpl; [by intros _ ?%elem_of_nil|]. destruct (laywhy d R v r a) eqn:E; [done|].
  intros Hl [->|Hb]%elem_of_cons; [by apply laywhy_sound|by apply IH].
Qed.
Lemma untouched_tch (R : list jrec) t u b : (∀ r, r ∈ R → r_eff r b = ENone) → tch (sg R t u b) = false.
Proof.
  intros H. unfold sg, es. assert (∀ l : list jrec, (∀ r, r ∈ l → r ∈ R) → tch ((λ r, r_eff r b) <$> l) = false) as Hl.
  { induction l as [|r l IH] using rev_ind; [done|]. intros Hs. rewrite fmap_app. csimpl. rewrite tch_snoc, H.
    - simpl. apply IH. intros r' Hr'. apply Hs, elem_of_app. by left.
    - apply Hs, elem_of_app. right. by left. }
  apply Hl. intros r (i&Hi)%elem_of_list_lookup. apply elem_of_list_lookup. rewrite lookup_drop in Hi.
  apply lookup_take_Some in Hi as [? _]. eauto.
Qed.
Lemma kimg_named c t u b : named c → ¬ knows (dsk c) b → kimg (recs c) t u b = None.
Proof. intros H Hb. unfold Journal.kimg. rewrite untouched_tch; [done|]. intros r Hr. by apply H. Qed.
Lemma todo_keys {A} (b : nat) (y : A) t : (tput b y t).*1 = t.*1.
Proof. unfold tput, tmap. rewrite <-list_fmap_compose. done. Qed.

Lemma homed_steps c : vsteps [] (model c) (model (homed c)).
Proof.
  unfold homed. destruct (kp (vl c)) as [|u img| | |] eqn:E; try apply vsteps_nil. unfold model. simpl.
  eapply (vsteps_to Tau); [|apply abs_tfim].
  apply (s_round_flush 0 N d0 u img (home (abs (dsk c))) (slots (abs (dsk c))) (hdrs (abs (dsk c)))). done.
Qed.
Lemma homed_recs c : recs (homed c) = recs c ∧ fly (homed c) = fly c ∧ (∀ b, knows (dsk (homed c)) b ↔ knows (dsk c) b) ∧
  ∀ u img, kp (vl (homed c)) ≠ KW u img.
Proof. unfold homed. destruct (kp (vl c)) eqn:E; simpl; split_and!; try done; intros; try congruence. apply knows_teach. Qed.

Lemma named_more R t t' v td fl a a' v' td' fl' :
  (∀ b, knows t b → knows t' b) → named (Rn t R a v td fl) → named (Rn t' R a' v' td' fl').
Proof. intros H Hn r b Hr Hb. apply (Hn r b Hr). simpl in *. auto. Qed.
Lemma tdrop_in {A} f g (x : A) l : (g, x) ∈ tdrop f l → (g, x) ∈ l.
Proof. rewrite !elem_of_list_In. unfold tdrop. rewrite filter_In. by intros []. Qed.

Lemma exec_steps c e c' : J c → exec c e = Ok c' →
  vsteps (lab c e) (model c) (model c') ∧ (∀ b, knows (dsk c) b → knows (dsk c') b) ∧ named c' ∧
  (∀ f sn, (f, sn) ∈ fly c' → (f, sn) ∈ fly c ∨ sn = dsk c) ∧ todo_ok c'.
Proof.
  intros [[_ HW] Hnm Hfly Htd]. simpl in HW. destruct HW as [Hcp Hkp].
  destruct c as [t R a v td fl]. simpl in *. unfold todo_ok in *. simpl in *.
  destruct e as [b x|b|ep sq pos len fd l| |f|f| |b|b x| |b x|b|gen ep tl pos fd| |]; simpl.
  - destruct (stt v b) eqn:Es; try done. intros [= <-].
    assert (∀ b', knows t b' → knows (twrm (one b (oget x)) (tknow [b] [] t)) b') as Hk.
    { intros b' Hb'. apply knows_teach, knows_tknow. by left. }
    split_and!; simpl; try (by auto); [|by eapply named_more].
    eapply (vsteps_to Tau).
    + by apply (s_data 0 N d0 b (oget x) (home (abs t)) (slots (abs t)) (hdrs (abs t))).
    + apply (abs_twrm (one b (oget x)) (abs t)); [|apply abs_tknow].
      intros b' Hb'. unfold one. destruct (decide (b' = b)) as [->|]; [|done]. exfalso.
      apply Hb', knows_tknow. right. by left.
  - destruct (stt v b) eqn:Es; try done. intros [= <-].
    assert (∀ b', knows t b' → knows (tfim (one b (λ _, 0)) t) b') as Hk by (intros b' Hb'; by apply knows_teach).
    split_and!; simpl; try (by auto); [|by eapply named_more].
    eapply (vsteps_to Tau); [|apply abs_tfim].
    by apply (s_data_done 0 N d0 b (λ _, 0) (home (abs t)) (slots (abs t)) (hdrs (abs t))).
  - destruct (cp v) eqn:Ec; try done.
    destruct (sq =? length R) eqn:E1; simpl; [|done]. destruct (fd =? a) eqn:E2; simpl; [|done].
    destruct (ep =? h_ep (hc v)) eqn:E3; simpl; [|done]. destruct (pos =? posn R (length R)) eqn:E4; simpl; [|done].
    destruct len as [|len']; [done|]. set (len := S len') in *.
    destruct (posn R (length R) + len <=? posn R (dt v) + N) eqn:E6; simpl; [|done].
    destruct (twice l.*1); [done|]. destruct (laywhys _ _ _ _ _) eqn:El; [done|]. intros [= <-].
    apply Nat.eqb_eq in E1 as ->, E2 as ->, E3 as ->, E4 as ->. apply Nat.leb_le in E6.
    set (r := Rec _ _ _ _ _ _) in *. set (t1 := tknow _ _ _).
    assert (∀ b', knows t b' ∨ b' ∈ l.*1 → knows (twrs N r t1) b') as Hk.
    { intros b' Hb'. by apply knows_teach, knows_tknow. }
    split_and!; simpl; try (by auto).
    + eapply (vsteps_to (Lay r)); [|apply (abs_twrs N r t l.*1)].
      apply (s_lay 0 N d0 r (home (abs t)) (slots (abs t)) (hdrs (abs t))); try done; [unfold r; simpl; lia|].
      intros b. destruct (decide (b ∈ l.*1)) as [Hb|Hb].
      * by eapply laywhys_sound in El.
      * unfold layok, r. simpl. by rewrite effs_none.
    + intros r' b' [Hr|Hr]%elem_of_app Hb'; simpl in *.
      * apply (Hnm r' b' Hr). simpl. intros Hkn. apply Hb', Hk. by left.
      * apply elem_of_list_singleton in Hr as ->. apply effs_none. intros Hl. apply Hb', Hk. by right.
  - destruct (cp v) eqn:Ec; try done. destruct (R !! a) as [r|] eqn:ER; [|done]. intros [= <-].
    assert (∀ b', knows t b' → knows (tfis N r t) b') as Hk by (intros b' Hb'; by apply knows_teach).
    split_and!; simpl; try (by auto); [|by eapply named_more].
    eapply (vsteps_to Tau); [|apply abs_tfis].
    by apply (s_commit_flush 0 N d0 r (home (abs t)) (slots (abs t)) (hdrs (abs t))).
  - destruct (tmem fl f); [done|]. intros [= <-]. split_and!; simpl; try (by auto); [apply vsteps_nil|].
    intros g sn [[= -> ->]|Hg]%elem_of_cons; auto.
  - destruct (tfind fl f) as [sn|] eqn:Ef; [|done]. intros [= <-].
    assert (∀ b', knows t b' → knows (tsync sn t) b') as Hk by (intros b' Hb'; by apply knows_teach).
    split_and!; simpl; try (by auto); [|by eapply named_more|by left; eapply tdrop_in].
    apply (vsteps_step Tau). constructor. apply abs_tsync. apply (Hfly f). by apply tfind_in.
  - destruct (cp v) as [| |sn] eqn:Ec; try done. destruct (flushedb sn t) eqn:Ef; [|done]. intros [= <-].
    split_and!; simpl; try (by auto). apply (vsteps_step Ack). eapply s_ack; [done|]. by apply flushedb_sound.
  - destruct (kp v) eqn:Ek; try done. destruct (stt v b) as [|s wp| |] eqn:Es; try done.
    destruct (_ || _) eqn:Ep; [|done]. intros [= <-]. split_and!; simpl; try (by (auto || congruence)).
    apply (vsteps_step Tau). rewrite <-Ek. eapply s_release; [done|done|].
    apply orb_true_iff in Ep as [Ep|Ep]; [left; by apply Nat.ltb_lt|right].
    apply andb_true_iff in Ep as [E1 E2]. apply Nat.eqb_eq in E1. split; [done|].
    apply orb_true_iff in E2 as [E2|E2]; [left; by apply negb_true_iff|right; by apply Nat.leb_le].
  - destruct (stt v b) eqn:Es; try done. destruct (differ _ _) eqn:Ed; [done|]. intros [= <-].
    split_and!; simpl; try (by auto). apply (vsteps_step (Read _ _)). constructor; [done|]. intros o.
    rewrite (differ_none _ _ Ed). unfold seen. simpl. destruct (tch _); [|done]. by intros ? ->.
  - destruct (kp v) eqn:Ek; try done. destruct (dt v <? a) eqn:Ea; [|done]. apply Nat.ltb_lt in Ea.
    set (img := kimg R (dt v) a). set (bs := List.filter _ _). set (c1 := Rn (twrm img t) _ _ _ _ _).
    assert (vsteps [] (St (abs t) R a (Run v)) (model c1)) as Hs.
    { eapply (vsteps_to Tau).
      - by apply (s_round 0 N d0 (home (abs t)) (slots (abs t)) (hdrs (abs t))).
      - apply (abs_twrm img (abs t)); [|by split_and!]. intros b. apply (kimg_named (Rn t R a v td fl)). done. }
    assert (∀ b', knows t b' → knows (twrm img t) b') as Hk by (intros b' Hb'; by apply knows_teach).
    assert (named c1) as Hn' by by eapply named_more.
    assert (∀ b, img b ≠ None → b ∈ bs) as Hbs.
    { intros b Hb. apply elem_of_list_In, filter_In. destruct (img b) eqn:Ei; [|done]. split; [|done].
      apply elem_of_list_In, tmem_keys. destruct (tmem (t_home t) b) eqn:Em; [done|].
      exfalso. apply Hb. rewrite <-Ei. apply (kimg_named (Rn t R a v td fl)); [done|]. unfold knows. simpl. by rewrite Em. }
    destruct bs as [|b0 bs'] eqn:Ebs; intros [= <-].
    + destruct (homed_recs c1) as (H1&H2&H3&H4). split_and!.
      * apply (vsteps_app [] []  _ _ _ Hs), homed_steps.
      * intros b Hb. apply H3. by apply Hk.
      * intros r b. rewrite H1, H3. apply Hn'.
      * rewrite H2. by left.
      * intros u i b Hu. by apply H4 in Hu.
    + split_and!; try done; simpl; [by left|]. intros u i b [= <- <-] Hb.
      rewrite <-list_fmap_compose. csimpl. rewrite list_fmap_id. by apply Hbs.
  - destruct (kp v) as [|u img| | |] eqn:Ek; try done. destruct (tfind td b) as [[]|]; try done.
    destruct (img b) as [y|] eqn:Ei; [|done]. destruct (differ _ _); [done|]. intros [= <-].
    split_and!; simpl; try (by auto); [apply vsteps_nil|]. intros u' i b'. rewrite todo_keys, Ek. apply Htd.
  - destruct (kp v) as [|u img| | |] eqn:Ek; try done. destruct (tfind td b) as [[]|]; try done.
    set (c1 := Rn t R a v _ fl).
    destruct (firstof _ _); intros [= <-].
    + split_and!; simpl; try (by auto); [apply vsteps_nil|]. intros u' i b'. rewrite todo_keys, Ek. apply Htd.
    + destruct (homed_recs c1) as (H1&H2&H3&H4). split_and!.
      * apply (homed_steps c1).
      * intros b' Hb'. by apply H3.
      * intros r b'. rewrite H1, H3. apply Hnm.
      * rewrite H2. by left.
      * intros u' i b' Hu. by apply H4 in Hu.
  - destruct (kp v) as [| |u img sn| |] eqn:Ek; try done; [by destruct (firstof _ _)|].
    destruct (flushedb sn t) eqn:Ef; simpl; [|done]. repeat (destruct (_ =? _); simpl; [|done]). intros [= <-].
    assert (∀ b', knows t b' → knows (twrh (negb (nh v)) (hnew v R u) t) b') as Hk by (intros b' Hb'; by apply knows_teach).
    split_and!; simpl; try (by auto); [|by eapply named_more].
    eapply (vsteps_to Tau); [|apply abs_twrh].
    eapply (s_tail 0 N d0 u img sn (home (abs t)) (slots (abs t)) (hdrs (abs t))); [done|]. by apply (flushedb_sound sn t).
  - destruct (kp v) eqn:Ek; try done. intros [= <-].
    assert (∀ b', knows t b' → knows (tfih (negb (nh v)) t) b') as Hk by (intros b' Hb'; by apply knows_teach).
    split_and!; simpl; try (by auto); [|by eapply named_more].
    eapply (vsteps_to Tau); [|apply abs_tfih].
    by apply (s_tail_flush 0 N d0 u (home (abs t)) (slots (abs t)) (hdrs (abs t))).
  - destruct (kp v) as [| | | |u sn] eqn:Ek; try done. destruct (flushedb sn t) eqn:Ef; [|done]. intros [= <-].
    split_and!; simpl; try (by auto). apply (vsteps_step Tau). eapply s_round_end; [done|]. by apply flushedb_sound.
Qed.

Lemma exec_J c e c' : J c → exec c e = Ok c' → J c'.
Proof.
  intros Hj Hx. destruct (exec_steps _ _ _ Hj Hx) as (Hs&Hk&Hn&Hf&Ht). destruct Hj as [HW _ Hfly _].
  constructor; [by eapply W_vsteps|done| |done].
  assert (dle (abs (dsk c)) (abs (dsk c'))) as Hle.
  { eapply (run_vsteps _ (model c) (model c')); [done|done| |done].
    destruct e; simpl; intros Hc; repeat (apply elem_of_cons in Hc as [?|Hc]; [done|]); by apply elem_of_nil in Hc. }
  intros f sn [Hin| ->]%Hf; [|done]. destruct (Hfly _ _ Hin) as (?&?&?), Hle as (?&?&?). split_and!; intros; etrans; eauto.
Qed.

(** Nothing is forgotten: from the round to its flush, every image is written and complete. *)
Lemma firstof_none {A} (p : nat → A → bool) t : firstof p t = None → ∀ b y, (b, y) ∈ t → p b y = false.
Proof.
  induction t as [|[a x] t IH]; simpl; [by intros _ b y ?%elem_of_nil|]. destruct (p a x) eqn:E; [done|].
  intros H b y [[= -> ->]|Hin]%elem_of_cons; eauto.
Qed.
Theorem round_written c e c' u img :
  J c → exec c e = Ok c' → kp (vl c) = KW u img → (∀ u' i, kp (vl c') ≠ KW u' i) →
  ∀ b, img b ≠ None → (b, Complete) ∈ todo c'.
Proof.
  intros [_ _ _ Ht] Hx Hk Hk' b Hb. specialize (Ht _ _ _ Hk Hb).
  destruct c as [t R a [n h st cc k] td fl]. simpl in *. subst k. destruct e; simpl in Hx;
    repeat (case_match; simplify_eq; simpl in *); try (by destruct (Hk' u img)).
  rewrite <-(todo_keys b0 Complete) in Ht.
  apply elem_of_list_fmap in Ht as ([b' y]&->&Hin). simpl.
  pose proof (firstof_none _ _ ltac:(eassumption) _ _ Hin) as Hy. simpl in Hy. by destruct y.
Qed.

Fixpoint execs (c : run) (l : list ev) : res run :=
  match l with [] => Ok c | e :: l => match exec c e with Ok c' => execs c' l | No w => No w end end.
Fixpoint labs (c : run) (l : list ev) : list jlabel :=
  match l with [] => [] | e :: l => lab c e ++ match exec c e with Ok c' => labs c' l | No _ => [] end end.
Lemma execs_sound l c c' : J c → execs c l = Ok c' → vsteps (labs c l) (model c) (model c') ∧ J c'.
Proof.
  revert c. induction l as [|e l IH]; intros c Hj; simpl; [intros [= ->]; split; [apply vsteps_nil|done]|].
  destruct (exec c e) as [c1|] eqn:E; [|done]. intros Hx. destruct (exec_steps _ _ _ Hj E) as [H1 _].
  destruct (IH c1) as [H2 H3]; [by eapply exec_J|done|]. split; [by eapply vsteps_app|done].
Qed.

Lemma spec_vis l s s' : spec_steps 0 d0 l s s' → spec_steps 0 d0 (vis l) s s'.
Proof.
  induction 1 as [|l ls s1 s2 s3 H1 H2 IH]; [constructor|]. destruct l; simpl; try by econstructor.
  by inversion H1; subst.
Qed.
Definition J0 (c : run) : Prop := init 0 d0 (model c) ∧ J c.

(** An accepted trace refines the specification ... *)
Theorem accepted l c c' :
  J0 c → execs c l = Ok c' → spec_steps 0 d0 (labs c l) ([], 0) (recs c', acked c').
Proof.
  intros [Hi Hj] Hx. destruct (execs_sound _ _ _ Hj Hx) as [(ls&Hs&<-) _]. apply spec_vis.
  by eapply (journal_refines 0 N d0 ls (model c) (model c')).
Qed.
(** ... and so does each of its prefixes, cut at any point, followed by any recovery: the
    opening keeps everything that was acknowledged before the cut. *)
Definition quiet_label (x : jlabel) : Prop := match x with Lay _ | Ack | Open _ => False | _ => True end.
Lemma quiet_steps l t t' : Forall quiet_label l → MI 0 N d0 t → steps l t t' → MI 0 N d0 t' ∧ rs t' = rs t ∧ lb t' = lb t.
Proof.
  intros Hno Hm Hs. induction Hs as [|x l t1 t2 t3 H1 H2 IH]; [done|].
  apply Forall_cons in Hno as [Hx Hno]. destruct (step_ok _ _ _ _ _ _ Hm H1) as [Hm2 Hsp].
  destruct (IH Hno Hm2) as (?&E1&E2). split; [done|]. rewrite E1, E2. by inversion Hsp; subst.
Qed.
Lemma execs_MI l c c' : J0 c → execs c l = Ok c' → MI 0 N d0 (model c').
Proof.
  intros [Hi Hj] Hx. destruct (execs_sound _ _ _ Hj Hx) as [(ls'&Hs'&_) _].
  eapply steps_MI; [by apply init_MI|done].
Qed.
Theorem accepted_cut l1 l2 c c1 c' ls k s2 s3 :
  J0 c → execs c (l1 ++ l2) = Ok c' → execs c l1 = Ok c1 → Forall quiet_label ls →
  steps (Crash :: ls) (model c1) s2 → step (Open k) s2 s3 →
  acked c1 ≤ k ≤ length (recs c1) ∧ rs s3 = take k (recs c1).
Proof.
  intros H0 _ Hx Hno Hs Ho. pose proof (execs_MI _ _ _ H0 Hx) as Hm.
  destruct (quiet_steps (Crash :: ls) (model c1) s2) as (Hm2&E1&E2); [by apply Forall_cons_2|done|done|].
  simpl in E1, E2. rewrite <-E1, <-E2.
  destruct (step_ok _ _ _ _ _ _ Hm2 Ho) as [_ Hsp]. inversion Hsp; subst. split; [lia|congruence].
Qed.
End exec.

(** A new volume: blocks in use with their contents; the others are free. *)
Definition d0_of (l : tab (oct nat)) : nat → option (sector → nat) := λ b, oget <$> tfind l b.
Definition start (l : tab (oct nat)) : run :=
  Rn (TD ((λ p : nat * oct nat, (p.1, oof (λ o, Cell [] (oget p.2 o) 0 0 false))) <$> l) []
       (Cell [] (Some h0) 0 0 false) (Cell [] None 0 0 false))
    [] 0 (Vol false h0 (opened 0 (d0_of l) [] 0) CIdle KIdle) [] [].
Lemma start_home l b : tget x0 (t_home (dsk (start l))) b =
  match tfind l b with Some x => oof (λ o, Cell [] (oget x o) 0 0 false) | None => x0 end.
Proof. simpl. induction l as [|[a x] l IH]; csimpl; [done|]. by destruct (Nat.eqb a b). Qed.
Theorem start_init l : J0 (d0_of l) (start l).
Proof.
  assert (∀ b o, quiet (home (abs (dsk (start l))) b o)) as Hq.
  { intros b o. unfold abs, home. rewrite start_home. destruct (tfind l b); [rewrite oget_oof|rewrite oget_x0]; done. }
  split.
  - eexists. split; [reflexivity|]. split_and!; try done. intros b o c. unfold d0_of, abs, home. rewrite start_home.
    destruct (tfind l b); [|done]. intros [= <-]. by rewrite oget_oof.
  - constructor; simpl.
    + split; [|done]. split_and!; intros; unfold cwf; [|done|by destruct i]. destruct (Hq b o) as [Hd _]. simpl in *. lia.
    + by intros r b ?%elem_of_nil.
    + by intros f sn ?%elem_of_nil.
    + done.
Qed.
(** The model does recover: a new volume can be cut and opened again. *)
Theorem start_recovers n l : ∃ s2 s3,
  steps 0 n (d0_of l) [Crash; Tau] (model (start l)) s2 ∧ step 0 n (d0_of l) (Open 0) s2 s3.
Proof.
  eexists _, _. split.
  - eapply steps_cons; [|eapply steps_cons; [|constructor]].
    + apply (s_crash 0 n (d0_of l) _ (dclean (dk (model (start l))))). split_and!; intros; apply survives_clean.
    + apply (r_nothing 0 n (d0_of l) false h0 []); [split; [done|]| | |].
      * simpl. done.
      * done.
      * split; [done|]. intros r (_&_&_&Hl&Hc). specialize (Hc 0 Hl). simpl in Hc. done.
      * split; [done|]. split; [done|]. by left.
  - eapply r_open. reflexivity.
Qed.
Definition check_event (n : nat) (l : tab (oct nat)) : run → ev → res run := exec n (d0_of l).
