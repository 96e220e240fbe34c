(** The checker of recoveries: after a cut of an accepted trace it takes what survived, if a cut
    can leave it, computes what recovery must find, and compares what recovery writes. Proved
    sound: an accepted recovery is one of the model, cuts within it included. *)
From stdpp Require Import prelude functions list.
From Steadfast Require Import Disk Replay Journal Inv Recovery Run Refine CheckDevice Checker CheckScan.

(** ** Events *)
Inductive cutev :=
  | VSurvived (b : nat) (v : oct nat)               (** home after the cut *)
  | VSlot (i : nat) (x : option (nat * nat * nat))  (** a block of the log: sequence, epoch, part; or garbage *)
  | VHeader (i : bool) (g : option nat)             (** a header's place: its generation, or garbage *)
  | VRecover                                        (** recovery begins *)
  | VFlush (f : nat) | VFlushed (f : nat)
  | VVerdict (gen ep rep tl pos en fl : nat)        (** a verdict's write begins *)
  | VVerdictDone
  | VReplay (b : nat) (v : oct nat)                 (** a block's write home begins *)
  | VReplayDone                                     (** all of them are complete *)
  | VFresh (gen ep tl pos fl : nat)                 (** the empty log's header's write begins *)
  | VFreshDone
  | VOpen (k : nat)                                 (** recovery has ended with the first [k] records *)
  | VAgain.                                         (** the next cut *)

Inductive place :=
  | PCut                                       (** cut: what survived is being named *)
  | PScan                                      (** recovery reads *)
  | PVerd (i : bool) (h : hdr) (l : list jrec)  (** header [i] is [h]; a verdict for [l] is written to the other *)
  | PRepl (i : bool) (h : hdr) (l : list jrec) (todo : tab phase)  (** header [i] is the verdict; replay *)
  | PFresh (i : bool) (h : hdr) (k : nat)      (** the empty log's header is written to the other *)
  | POpen.
Record rcv := Rc { r_dsk : tdisk; r_recs : list jrec; r_ack : nat; r_fly : tab tdisk; r_at : place }.
Definition pplace (p : place) : nat :=
  match p with PCut => 0 | PScan => 1 | PVerd _ _ _ => 2 | PRepl _ _ _ _ => 3 | PFresh _ _ _ => 4 | POpen => 5 end.

(** A running journal is cut. *)
Definition cut_run (c : run) : rcv := Rc (tsurv (tback (todo c) (dsk c))) (recs c) (acked c) [] PCut.

Definition opick (v : oct nat) (x : oct (cell nat)) : oct (cell nat) + sector :=
  match ofind (λ o, match pick (λ w, w =? oget v o) (oget x o) with Some _ => false | None => true end) with
  | Some o => inr o
  | None => inl (oeach (λ o c, match pick (λ w, w =? oget v o) c with Some c' => c' | None => c end) x)
  end.
Definition isslot (x : option (nat * nat * nat)) (y : jlblk) : bool :=
  match x, y with
  | None, None => true
  | Some (sq, ep, j), Some (r, j') => (r_seq r =? sq) && (r_ep r =? ep) && (j' =? j)
  | _, _ => false
  end.
Definition ishdr (g : option nat) (y : option hdr) : bool :=
  match g, y with None, None => true | Some g, Some h => h_gen h =? g | _, _ => false end.

Section rexec.
Context (N : nat) (d0 : nat → option (sector → nat)).

(** The chain to accept, after the newer header. *)
Definition judge (t : tdisk) (R : list jrec) (h : hdr) : option (list jrec) :=
  match scan N (length R) t (h_rep h) (h_pos h) (h_tail h) with
  | Some l => Some (take (cutidx t (proved h l) l) l)
  | None => None
  end.
Definition rtodo (t : tdisk) (l : list jrec) : tab phase :=
  (λ b, (b, Waiting)) <$> List.filter (λ b, tch (es l b)) (t_home t).*1.
(** Replay may begin: the verdict is durable. *)
Definition to_repl (c : rcv) : res rcv :=
  let t := r_dsk c in
  match r_at c with
  | PRepl _ _ _ _ => Ok c
  | PVerd i h l =>
      if tdefinite t then
        Ok (Rc t (r_recs c) (r_ack c) (r_fly c) (PRepl (negb i) (verdict h (h_tail h + length l)) l (rtodo t l)))
      else No WFlush
  | PScan =>
      match best t with
      | Some (i, h) => match h_vd h with
          | Some k =>
              let l := drop (h_tail h) (take k (r_recs c)) in
              if tdefinite t then Ok (Rc t (r_recs c) (r_ack c) (r_fly c) (PRepl i h l (rtodo t l))) else No WFlush
          | None => match judge t (r_recs c) h with
              | Some l => No (WVerdict (h_tail h + length l))
              | None => No WEndless
              end
          end
      | None => No WNoHeader
      end
  | p => No (WPhase (pplace p))
  end.
Definition fields (l : list (field * nat * nat)) : option why :=
  match List.find (λ x, negb (x.1.2 =? x.2)) l with Some x => Some (WField x.1.1 x.2) | None => None end.
(** What replay writes to a sector. *)
Definition rsector (t : tdisk) (l : list jrec) (b : nat) (o : sector) : nat :=
  rpl 0 (es l b) o (cur (home (abs t) b o)).
Definition write_fresh (c : rcv) (gen ep tl pos fl : nat) i h (l : list jrec) (e : nat) (p : place) : res rcv :=
  let w := fresh h l e in
  match fields [(FGen, gen, h_gen w); (FEpoch, ep, h_ep w); (FTail, tl, h_tail w); (FPos, pos, h_pos w);
      (FFlushed, fl, h_fl w)] with
  | Some x => No x
  | None => if tdefinite (r_dsk c) then Ok (Rc (twrh (negb i) w (r_dsk c)) (r_recs c) (r_ack c) (r_fly c) p) else No WFlush
  end.

Definition rexec (c : rcv) (e : cutev) : res rcv :=
  let t := r_dsk c in let R := r_recs c in let a := r_ack c in let fl := r_fly c in
  match e with
  | VSurvived b v =>
      match r_at c with
      | PCut => match opick v (tget x0 (t_home t) b) with
          | inl x => Ok (Rc (teach (λ b' y, if b' =? b then x else y) keep keep t) R a fl PCut)
          | inr o => No (WBlockGone b o)
          end
      | p => No (WPhase (pplace p))
      end
  | VSlot i x =>
      match r_at c with
      | PCut => match pick (isslot x) (tget s0 (t_slots t) i) with
          | Some y => Ok (Rc (teach keep (λ i' z, if i' =? i then y else z) keep t) R a fl PCut)
          | None => No (WSlotGone i)
          end
      | p => No (WPhase (pplace p))
      end
  | VHeader i g =>
      match r_at c with
      | PCut => match pick (ishdr g) (hdrs (abs t) i) with
          | Some y => Ok (Rc (teach keep keep (λ i' z, if Bool.eqb i' i then y else z) t) R a fl PCut)
          | None => No (WHeaderGone (if i then 1 else 0))
          end
      | p => No (WPhase (pplace p))
      end
  | VRecover =>
      match r_at c with PCut => Ok (Rc t R a fl PScan) | p => No (WPhase (pplace p)) end
  | VFlush f =>
      match r_at c with
      | PCut => No (WPhase 0)
      | p => if tmem fl f then No (WFlushName f) else Ok (Rc t R a ((f, t) :: fl) p)
      end
  | VFlushed f =>
      match r_at c, tfind fl f with
      | PCut, _ => No (WPhase 0)
      | p, Some sn => Ok (Rc (tsync sn t) R a (tdrop f fl) p)
      | _, None => No (WFlushName f)
      end
  | VVerdict gen ep rep tl pos en fl' =>
      match r_at c with
      | PScan =>
          match best t with
          | Some (i, h) => match h_vd h with
              | None => match judge t R h with
                  | Some [] => No WNoVerdict
                  | Some l =>
                      let w := verdict h (h_tail h + length l) in
                      match fields [(FGen, gen, h_gen w); (FEpoch, ep, h_ep w); (FRep, rep, h_rep w);
                          (FTail, tl, h_tail w); (FPos, pos, h_pos w); (FEnd, en, h_fl w);
                          (FFlushed, fl', h_fl w)] with
                      | Some x => No x
                      | None => if tdefinite t then Ok (Rc (twrh (negb i) w t) R a fl (PVerd i h l)) else No WFlush
                      end
                  | None => No WEndless
                  end
              | Some _ => No WNoVerdict
              end
          | None => No WNoHeader
          end
      | p => No (WPhase (pplace p))
      end
  | VVerdictDone =>
      match r_at c with
      | PVerd i h l => Ok (Rc (tfih (negb i) t) R a fl (PVerd i h l))
      | p => No (WPhase (pplace p))
      end
  | VReplay b v =>
      match to_repl c with
      | Ok c' => match r_at c' with
          | PRepl i h l todo => match tfind todo b with
              | Some Waiting => match differ (oget v) (rsector t l b) with
                  | None =>
                      if oall (λ o, quietb (home (abs t) b o))
                      then Ok (Rc (twrm (one b (oget v)) (tknow [b] [] t)) R a fl (PRepl i h l (tput b Writing todo)))
                      else No (WWriting b)
                  | Some o => No (WHolds b o (rsector t l b o))
                  end
              | Some _ => No (WOrder b)
              | None => No (WNoImage b)
              end
          | p => No (WPhase (pplace p))
          end
      | No w => No w
      end
  | VReplayDone =>
      match to_repl c with
      | Ok c' => match r_at c' with
          | PRepl i h l todo =>
              match firstof (λ _ x, match x with Waiting => true | _ => false end) todo with
              | Some b => No (WForgotten b)
              | None =>
                  Ok (Rc (tfim (λ b, match tfind todo b with Some _ => Some (λ _, 0) | None => None end) t) R a fl
                    (PRepl i h l todo))
              end
          | p => No (WPhase (pplace p))
          end
      | No w => No w
      end
  | VFresh gen ep tl pos fl' =>
      match r_at c, best t with
      | PScan, Some (i, Hdr g he hr ht hp hf None as h) =>
          match judge t R h with
          | Some [] => write_fresh c gen ep tl pos fl' i h [] (S (h_ep h)) (PFresh i h (h_tail h))
          | Some l => No (WVerdict (h_tail h + length l))
          | None => No WEndless
          end
      | _, _ =>
          match to_repl c with
          | Ok c' => match r_at c' with
              | PRepl i h l todo =>
                  match firstof (λ _ x, match x with Waiting => true | _ => false end) todo with
                  | Some b => No (WForgotten b)
                  | None => if h_ep h <=? ep then write_fresh c gen ep tl pos fl' i h l ep (PFresh i h (h_tail h + length l))
                            else No (WField FEpoch (h_ep h))
                  end
              | p => No (WPhase (pplace p))
              end
          | No w => No w
          end
      end
  | VFreshDone =>
      match r_at c with
      | PFresh i h k => Ok (Rc (tfih (negb i) t) R a fl (PFresh i h k))
      | p => No (WPhase (pplace p))
      end
  | VOpen k' =>
      match r_at c with
      | PFresh i h k =>
          if negb (k' =? k) then No (WField FKept k) else
          if tdefinite t then Ok (Rc t (take k R) k fl POpen) else No WFlush
      | p => No (WPhase (pplace p))
      end
  | VAgain => Ok (Rc (tsurv t) R a [] PCut)
  end.
Definition rlab (e : cutev) : list jlabel := match e with VRecover => [Crash] | VOpen k => [Open k] | _ => [] end.

(** ** Soundness *)
Notation step := (step 0 N d0).
Notation steps := (steps 0 N d0).
Notation vsteps := (vsteps N d0).
Notation MI := (MI 0 N d0).

Definition known (R : list jrec) (t : tdisk) : Prop := ∀ r b, r ∈ R → ¬ knows t b → r_eff r b = ENone.
Definition rel (c : rcv) (s : jst) : Prop :=
  let t := r_dsk c in
  rs s = r_recs c ∧ lb s = r_ack c ∧ known (r_recs c) t ∧
  match r_at c with PCut => dsurvives (dk s) (abs t) | _ => sub t (dk s) ∧ log_is t (dk s) end ∧
  match r_at c with
  | PCut => True
  | PScan => md s = MScan ∧ home_eq t (dk s)
  | PVerd i h l => md s = MVerd i h l ∧ home_eq t (dk s) ∧ ∀ r, r ∈ l → r ∈ r_recs c
  | PRepl i h l todo => md s = MRepl i h l ∧ ∀ b o, cur (home (dk s) b o) =
      match tfind todo b with Some Waiting => rsector t l b o | _ => cur (home (abs t) b o) end
  | PFresh i h k => md s = MFresh i h k ∧ home_eq t (dk s)
  | POpen => home_eq t (dk s)
  end.

Lemma known_mono R t t' : (∀ b, knows t b → knows t' b) → known R t → known R t'.
Proof. intros H Hk r b Hr Hb. apply (Hk r b Hr). auto. Qed.
Lemma wrh_clean j w t d : tdefinite t = true → log_is t d → home_eq t d →
  let d' := Disk (home (dclean d)) (slots (dclean d)) (wrh j w (hdrs (dclean d))) in
  sub (twrh j w t) d' ∧ log_is (twrh j w t) d' ∧ home_eq (twrh j w t) d'.
Proof.
  intros Hd Hl Hh. simpl. destruct (sub_clean t d Hd Hl Hh) as (S1&S2&S3).
  destruct (abs_twrh j w t) as (E1&E2&E3). destruct (tdefinite_true _ Hd) as (_&_&D3).
  split_and!.
  - split_and!.
    + intros b o x. rewrite <-E1. apply S1.
    + intros i x. rewrite <-E2. apply S2.
    + intros i x. rewrite <-E3. simpl. unfold wrh. case_decide; [|apply S3].
      intros [->|[->%elem_of_list_singleton|Hp]]%poss_begin; [by left| | |by apply (definite_true _ (D3 i))].
      * right. left. exists 1. split; [simpl; lia|done].
      * apply (definite_true _ (D3 i)) in Hp as ->. rewrite (proj2 Hl). right. left. exists 0. split; [simpl; lia|done].
  - split; intros i; [rewrite <-E2; apply Hl|rewrite <-E3]. simpl. unfold wrh. case_decide; [done|apply Hl].
  - intros b o. rewrite <-E1. apply Hh.
Qed.
Lemma tch_known R t l b : known R t → (∀ r, r ∈ l → r ∈ R) → tch (es l b) = true → knows t b.
Proof.
  intros Hk Hl Ht. destruct (tmem (t_home t) b) eqn:E; [done|]. apply not_knows in E.
  pose proof (untouched_tch l 0 (length l) b) as Hu. unfold sg in Hu. rewrite take_ge, drop_0 in Hu by done.
  rewrite Hu in Ht; [done|]. intros r Hr. apply Hk; auto.
Qed.
Lemma repl_start t d l R : tdefinite t = true → log_is t d → home_eq t d → known R t → (∀ r, r ∈ l → r ∈ R) →
  let d' := dclean d in let d2 := Disk (wrm (rimg 0 d' l) (home d')) (slots d') (hdrs d') in
  sub t d2 ∧ log_is t d2 ∧ ∀ b o, cur (home d2 b o) =
    match tfind (rtodo t l) b with Some Waiting => rsector t l b o | _ => cur (home (abs t) b o) end.
Proof.
  intros Hd Hl Hh Hk Hin. simpl. destruct (sub_clean t d Hd Hl Hh) as (S1&S2&S3).
  destruct (tdefinite_true _ Hd) as (D1&_&_). split_and!; [split_and!; try done|done|].
  - intros b o w Hp. simpl. unfold wrm. destruct (rimg _ _ _ _); [|by apply S1].
    apply (definite_true _ (D1 b o)) in Hp as ->. rewrite Hh. right. left. exists 0. split; [simpl; lia|done].
  - intros b o. simpl. unfold rtodo. rewrite tfind_const. unfold wrm, rimg.
    destruct (tch (es l b)) eqn:Et.
    + assert (existsb (λ a, a =? b) (List.filter (λ b, tch (es l b)) (t_home t).*1) = true) as ->.
      { apply existsb_in, elem_of_list_In, filter_In. split; [|done]. apply elem_of_list_In, tmem_keys. by eapply tch_known. }
      simpl. unfold rsector. by rewrite <-Hh.
    + destruct (existsb _ _) eqn:E; [|simpl; by rewrite <-Hh].
      apply existsb_in, elem_of_list_In, filter_In in E as [_ E]. by rewrite Et in E.
Qed.

Lemma scan_MI t R a d i h : MI (St d R a MScan) → log_is t d → best t = Some (i, h) →
  isbest (λ j, cur (hdrs d j)) i h ∧ hok 0 N d0 d R a h ∧ wfR N R.
Proof.
  intros [Hwf HD] Hl Hb. simpl in *. apply (best_isbest _ d) in Hb; [|done]. split; [done|]. split; [|done].
  by eapply DI_cur.
Qed.
Lemma judge_MI t R a d h l0 : hok 0 N d0 d R a h → h_vd h = None → log_is t d → home_eq t d → known R t →
  judge t R h = Some l0 →
  ∃ l k, l0 = take k l ∧ chain N d h l ∧ cutat d h l k ∧ length l0 = k ∧ ∀ r, r ∈ l0 → r ∈ R.
Proof.
  intros Hok Hvd Hl Hh Hk. unfold judge. destruct (scan _ _ _ _ _ _) as [l|] eqn:Es; [|done]. intros [= <-].
  unfold hok in Hok. rewrite Hvd in Hok. destruct Hok as (_&an&nn&Hp).
  assert (one_each t R (h_rep h)) as Hu.
  { intros j r q Hj He. rewrite (proj1 Hl) in Hj. destruct (pl_for _ _ _ _ _ _ _ _ _ Hp j r q) as [_ ?]; [|done|done].
    rewrite <-Hj. apply poss_cur. }
  destruct (scan_chain N (length R) t d R h l Hl Hu Es) as [Hc Hin].
  exists l, (cutidx t (proved h l) l). assert (cutat d h l (cutidx t (proved h l) l)) as Hcut.
  { apply cutidx_cutat; [done|]. intros r b Hr. apply Hk. auto. }
  split_and!; [done|done|done| |].
  - rewrite take_length. destruct Hcut. lia.
  - intros r Hr. apply Hin. eapply elem_of_list_lookup in Hr as (j&Hj). apply lookup_take_Some in Hj as [Hj _].
    by eapply elem_of_list_lookup_2.
Qed.

Lemma to_repl_sound c s c' : MI s → rel c s → to_repl c = Ok c' →
  ∃ s', vsteps [] s s' ∧ rel c' s' ∧ (∃ i h l td, r_at c' = PRepl i h l td) ∧
    r_dsk c' = r_dsk c ∧ r_recs c' = r_recs c ∧ r_ack c' = r_ack c ∧ r_fly c' = r_fly c.
Proof.
  intros HM Hr. destruct c as [t R a fl p], s as [[H G D] R' a' m]. destruct Hr as (HR&Ha&Hk&Hs&Hp). simpl in *. subst R' a'.
  unfold to_repl. simpl. destruct p as [| |i h l|i h l td|i h k|]; try done.
  - destruct Hp as [-> Hh], Hs as [_ Hl]. destruct (best t) as [[i h]|] eqn:Eb; [|done].
    destruct (scan_MI t R a _ i h HM Hl Eb) as (Hb&Hok&Hwf).
    destruct (h_vd h) as [k|] eqn:Ev; [|by destruct (judge _ _ _)].
    destruct (tdefinite t) eqn:Ed; [|done]. intros [= <-]. unfold hok in Hok. rewrite Ev in Hok. destruct Hok as (_&Hpos&Hv).
    set (l := drop (h_tail h) (take k R)).
    assert (∀ r, r ∈ l → r ∈ R) as Hin.
    { intros r (j&Hj)%elem_of_list_lookup. unfold l in Hj. rewrite lookup_drop in Hj.
      apply lookup_take_Some in Hj as [Hj _]. by eapply elem_of_list_lookup_2. }
    destruct (repl_start t (Disk H G D) l R Ed Hl Hh Hk Hin) as (Q1&Q2&Q3).
    eexists. split; [|split; [|split; [by eauto|done]]].
    + apply (vsteps_step N d0 Tau). apply (r_judged 0 N d0 i h l k H G D R a); [done|done| |].
      * unfold l. rewrite drop_length, take_length. destruct Hv. lia.
      * destruct Hv. rewrite ve_pos. apply (judged_valids N _ R _ k Hwf ve_n (k - h_tail h)); [lia|done].
    + split_and!; try done.
  - destruct Hp as (->&Hh&Hin), Hs as [_ Hl]. destruct (tdefinite t) eqn:Ed; [|done]. intros [= <-].
    destruct (repl_start t (Disk H G D) l R Ed Hl Hh Hk Hin) as (Q1&Q2&Q3).
    eexists. split; [|split; [|split; [by eauto|done]]].
    + apply (vsteps_step N d0 Tau). apply (r_replay 0 N d0 i h l (Disk H G D) R a).
    + split_and!; try done.
  - intros [= <-]. eexists. split; [apply vsteps_nil|]. split; [|split; [by eauto|done]]. by split_and!.
Qed.

Lemma fields_none l : fields l = None → ∀ f x w, (f, x, w) ∈ l → x = w.
Proof.
  unfold fields. destruct (List.find _ l) eqn:E; [done|]. intros _ f x w Hin. apply elem_of_list_In in Hin.
  apply (List.find_none _ _ E) in Hin. simpl in Hin. apply negb_false_iff in Hin. by apply Nat.eqb_eq.
Qed.
Lemma write_fresh_ok c gen ep tl pos fl i h l e p c' : write_fresh c gen ep tl pos fl i h l e p = Ok c' →
  tdefinite (r_dsk c) = true ∧ c' = Rc (twrh (negb i) (fresh h l e) (r_dsk c)) (r_recs c) (r_ack c) (r_fly c) p.
Proof.
  unfold write_fresh. destruct (fields _); [done|]. destruct (tdefinite _); [|done]. by intros [= <-].
Qed.
(** A named survivor is one more choice of the cut. *)
Definition keeps {A} (c c' : cell A) : Prop := quiet c → quiet c' ∧ ∀ v, poss c' v → poss c v.
Lemma keeps_survive {A} (c c1 c2 : cell A) : survives c c1 → keeps c1 c2 → survives c c2.
Proof. intros [H1 H2] H. destruct (H H1) as [H3 H4]. split; auto. Qed.
Lemma keeps_refl {A} (c : cell A) : keeps c c.
Proof. by intros ?. Qed.
Lemma keeps_teach d t fh fs fd : dsurvives d (abs t) →
  (∀ b o, tmem (t_home t) b = true → keeps (home (abs t) b o) (oget (fh b (tget x0 (t_home t) b)) o)) →
  (∀ i, tmem (t_slots t) i = true → keeps (slots (abs t) i) (fs i (slots (abs t) i))) →
  (∀ i, keeps (hdrs (abs t) i) (fd i (hdrs (abs t) i))) → dsurvives d (abs (teach fh fs fd t)).
Proof.
  intros (S1&S2&S3) H1 H2 H3. split_and!; intros.
  - rewrite abs_home_teach. destruct (tmem _ _) eqn:E; [|done]. eapply keeps_survive; [done|auto].
  - rewrite abs_slots_teach. destruct (tmem _ _) eqn:E; [|done]. eapply keeps_survive; [done|auto].
  - rewrite abs_hdrs_teach. eapply keeps_survive; [done|auto].
Qed.
Lemma pick_keeps {A} (p : A → bool) c c' : pick p c = Some c' → keeps c c'.
Proof. intros H Hq. by eapply pick_ok. Qed.
Lemma opick_keeps v x y o : opick v x = inl y → keeps (oget x o) (oget y o).
Proof.
  unfold opick. destruct (ofind _) eqn:E; [done|]. intros [= <-]. rewrite oget_oeach.
  pose proof (ofind_none _ E o) as Ho. simpl in Ho. destruct (pick _ _) eqn:Ep; [|done]. by eapply pick_keeps.
Qed.
Lemma known_teach R t fh fs fd : known R t → known R (teach fh fs fd t).
Proof. apply known_mono. intros b. by rewrite knows_teach. Qed.
(** The device alone: a write is complete, a flush has succeeded. *)
Lemma rel_narrows t t' R a fl fl' p s : p ≠ PCut → tnarrows t t' → (∀ b, knows t b → knows t' b) →
  rel (Rc t R a fl p) s → rel (Rc t' R a fl' p) s.
Proof.
  intros Hp Hn Hkn (HR&Ha&Hk&Hs&Hm). simpl in *.
  assert (∀ b o, cur (home (abs t') b o) = cur (home (abs t) b o)) as Hc by (intros; by apply home_narrows).
  split_and!; simpl; try done.
  - by eapply known_mono.
  - destruct p; try done; destruct Hs as [Hs Hl]; (split; [by eapply sub_narrows|by eapply log_narrows]).
  - unfold home_eq in *. destruct p as [| |i h l|i h l td|i h k|]; [done| | | | |].
    + destruct Hm as [? Hh]. split; [done|]. intros b o. by rewrite Hc.
    + destruct Hm as (?&Hh&?). split_and!; try done. intros b o. by rewrite Hc.
    + destruct Hm as [? Hh]. split; [done|]. intros b o. rewrite Hh.
      destruct (tfind td b) as [[]|]; try (symmetry; apply Hc). unfold rsector. by rewrite Hc.
    + destruct Hm as [? Hh]. split; [done|]. intros b o. by rewrite Hc.
    + intros b o. by rewrite Hc.
Qed.
Lemma rel_sub c s : rel c s → sub (r_dsk c) (dk s).
Proof.
  intros (_&_&_&Hs&_). destruct (r_at c); try apply Hs. destruct Hs as (S1&S2&S3).
  split_and!; intros; [by apply S1|by apply S2|by apply S3].
Qed.
Lemma rexec_sound c s e c' : MI s → rel c s → rexec c e = Ok c' → ∃ s', vsteps (rlab e) s s' ∧ rel c' s'.
Proof.
  intros HM Hr Hx. destruct c as [t R a fl p]. pose proof Hr as (HR&Ha&Hk&Hs&Hp). unfold rexec in Hx. simpl in *.
  destruct e as [b v|i x|i g| |f|f|gen ep rep tl pos en f| |b v| |gen ep tl pos f| |k|]; simpl.
  - destruct p; try done. destruct (opick v _) as [y|] eqn:E; [|done]. simplify_eq. eexists. split; [apply vsteps_nil|].
    split_and!; try done; simpl; [by apply known_teach|]. apply keeps_teach; try done; try by intros; apply keeps_refl.
    intros b' o _. destruct (b' =? b) eqn:Eb; [|by apply keeps_refl]. apply Nat.eqb_eq in Eb as ->.
    by apply (opick_keeps v).
  - destruct p; try done. destruct (pick _ _) as [y|] eqn:E; [|done]. simplify_eq. eexists. split; [apply vsteps_nil|].
    split_and!; try done; simpl; [by apply known_teach|]. apply keeps_teach; try done; try by intros; apply keeps_refl.
    intros i' _. destruct (i' =? i) eqn:Eb; [|by apply keeps_refl]. apply Nat.eqb_eq in Eb as ->. by eapply pick_keeps.
  - destruct p; try done. destruct (pick _ _) as [y|] eqn:E; [|done]. simplify_eq. eexists. split; [apply vsteps_nil|].
    split_and!; try done; simpl; [by apply known_teach|]. apply keeps_teach; try done; try by intros; apply keeps_refl.
    intros i'. destruct (Bool.eqb i' i) eqn:Eb; [|by apply keeps_refl]. apply eqb_prop in Eb as ->. by eapply pick_keeps.
  - destruct p; try done. simplify_eq. destruct s as [d R a m]. simpl in *.
    exists (St (abs t) R a MScan). split; [apply (vsteps_step N d0 Crash); by constructor|]. by split_and!.
  - assert (p ≠ PCut ∧ c' = Rc t R a ((f, t) :: fl) p) as [Hne ->].
    { destruct p; try done; destruct (tmem fl f); try done; by injection Hx as <-. }
    exists s. split; [apply vsteps_nil|]. exact Hr.
  - destruct (tfind fl f) as [sn|] eqn:E; [|by destruct p].
    assert (p ≠ PCut ∧ c' = Rc (tsync sn t) R a (tdrop f fl) p) as [Hne ->].
    { destruct p; try done; by injection Hx as <-. }
    exists s. split; [apply vsteps_nil|]. eapply rel_narrows; [done|apply (narrows_sync sn)| |exact Hr].
    intros b ?. by apply knows_teach.
  - destruct p; try done. destruct Hp as [Hm Hh], Hs as [_ Hl]. destruct (best t) as [[i h]|] eqn:Eb; [|done].
    destruct s as [[H G D] R' a' m]. simpl in *. subst R' a' m.
    destruct (scan_MI t R a _ i h HM Hl Eb) as (Hb&Hok&Hwf). destruct (h_vd h) eqn:Ev; [done|].
    destruct (judge t R h) as [l0|] eqn:Ej; [|done].
    destruct (judge_MI t R a _ h l0 Hok Ev Hl Hh Hk Ej) as (l&k&El&Hc&Hcut&Hlen&Hin).
    assert (l0 ≠ [] ∧ tdefinite t = true ∧
      c' = Rc (twrh (negb i) (verdict h (h_tail h + length l0)) t) R a fl (PVerd i h l0)) as (Hne&Ed&->).
    { destruct l0; [done|]. destruct (fields _); [done|]. destruct (tdefinite t); [|done]. by injection Hx as <-. }
    rewrite Hlen. destruct (wrh_clean (negb i) (verdict h (h_tail h + k)) t (Disk H G D) Ed Hl Hh) as (Q1&Q2&Q3).
    eexists. split; [|].
    + apply (vsteps_step N d0 Tau). apply (r_verdict 0 N d0 i h l k H G D R a); try done.
      intros ->. by destruct l0.
    + rewrite <-El. split_and!; try done. simpl. by apply known_teach.
  - destruct p; try done. simplify_eq. exists s. split; [apply vsteps_nil|].
    eapply rel_narrows; [done|apply narrows_fih| |exact Hr]. intros b ?. by apply knows_teach.
  - destruct (to_repl _) as [c1|] eqn:Et; [|done].
    destruct (to_repl_sound _ _ _ HM Hr Et) as (s'&Hv&Hr'&(i&h&l&td&Hat)&Et1&Et2&Et3&Et4). rewrite Hat in Hx.
    destruct c1 as [t1 R1 a1 fl1 p1]. simpl in *. subst t1 R1 a1 fl1 p1.
    destruct (tfind td b) as [[]|] eqn:Etd; try done. destruct (differ _ _) eqn:Edf; [done|].
    destruct (oall _) eqn:Eq; [|done]. simplify_eq. exists s'. split; [done|].
    destruct Hr' as (HR'&Ha'&Hk'&[Hs' Hl']&Hm'&Hh'). simpl in *.
    destruct (abs_twrm (one b (oget v)) (abs t) (tknow [b] [] t)) as (E1&E2&E3); [|apply abs_tknow|].
    { intros b' Hb'. unfold one. destruct (decide (b' = b)) as [->|]; [|done]. exfalso.
      apply Hb', knows_tknow. right. by left. }
    assert (∀ o, oget v o = cur (home (dk s') b o)) as Hcur.
    { intros o. rewrite Hh', Etd. by apply (differ_none _ _ Edf). }
    destruct Hs' as (S1&S2&S3). set (t' := twrm _ _) in *.
    assert (∀ b' o, cur (home (abs t') b' o) = if decide (b' = b) then oget v o else cur (home (abs t) b' o)) as Hnew.
    { intros b' o. rewrite <-E1. simpl. unfold wrm, one. by destruct (decide (b' = b)). }
    split; [done|]. split; [done|]. split; [|split]; cbn [r_at r_dsk r_recs].
    + intros r b' Hin Hb'. apply (Hk' r b' Hin). intros Hkn. apply Hb'. apply knows_teach, knows_tknow. by left.
    + split; [split; [|split]|split; intros i'].
      * intros b' o w. rewrite <-E1. simpl. unfold wrm, one. destruct (decide (b' = b)) as [->|]; [|apply S1].
        intros [->|[?%elem_of_nil|Hp']]%poss_begin; [left; apply Hcur|done|by apply S1|].
        apply quietb_true. apply (oall_true _ Eq o).
      * intros i' w. rewrite <-E2. apply S2.
      * intros i' w. rewrite <-E3. apply S3.
      * rewrite <-E2. apply Hl'.
      * rewrite <-E3. apply Hl'.
    + split; [done|]. intros b' o. rewrite tfind_tput. unfold rsector. rewrite Hnew.
      destruct (decide (b' = b)) as [->|Hne].
      * by rewrite Etd, Nat.eqb_refl, <-Hcur.
      * rewrite Hh'. destruct (tfind td b') as [x|]; [|done].
        destruct (b' =? b) eqn:E; [by apply Nat.eqb_eq in E|]. done.
  - destruct (to_repl _) as [c1|] eqn:Et; [|done].
    destruct (to_repl_sound _ _ _ HM Hr Et) as (s'&Hv&Hr'&(i&h&l&td&Hat)&Et1&Et2&Et3&Et4). rewrite Hat in Hx.
    destruct c1 as [t1 R1 a1 fl1 p1]. simpl in *. subst t1 R1 a1 fl1 p1.
    destruct (firstof _ _); [done|]. simplify_eq. exists s'. split; [done|].
    eapply rel_narrows; [done|apply narrows_fim| |exact Hr']. intros b ?. by apply knows_teach.
  - assert ((∃ i h, p = PScan ∧ best t = Some (i, h) ∧ h_vd h = None ∧ judge t R h = Some [] ∧
        write_fresh (Rc t R a fl p) gen ep tl pos f i h [] (S (h_ep h)) (PFresh i h (h_tail h)) = Ok c') ∨
      ∃ c1 i h l td, to_repl (Rc t R a fl p) = Ok c1 ∧ r_at c1 = PRepl i h l td ∧ h_ep h ≤ ep ∧
        (∀ b, tfind td b ≠ Some Waiting) ∧
        write_fresh (Rc t R a fl p) gen ep tl pos f i h l ep (PFresh i h (h_tail h + length l)) = Ok c') as [H|H].
    { assert (match to_repl (Rc t R a fl p) with
          | Ok c' => match r_at c' with
              | PRepl i h l todo =>
                  match firstof (λ _ x, match x with Waiting => true | _ => false end) todo with
                  | Some b => No (WForgotten b)
                  | None => if h_ep h <=? ep then write_fresh (Rc t R a fl p) gen ep tl pos f i h l ep (PFresh i h (h_tail h + length l))
                            else No (WField FEpoch (h_ep h))
                  end
              | p => No (WPhase (pplace p))
              end
          | No w => No w
          end = Ok c' → ∃ c1 i h l td, to_repl (Rc t R a fl p) = Ok c1 ∧ r_at c1 = PRepl i h l td ∧ h_ep h ≤ ep ∧
        (∀ b, tfind td b ≠ Some Waiting) ∧
        write_fresh (Rc t R a fl p) gen ep tl pos f i h l ep (PFresh i h (h_tail h + length l)) = Ok c') as Hb.
      { destruct (to_repl _) as [c1|] eqn:Et; [|done]. destruct (r_at c1) as [| |i h l|i h l td|i h k|] eqn:Eat; try done.
        destruct (firstof _ _) eqn:Ef; [done|]. destruct (h_ep h <=? ep) eqn:Ee; [|done]. apply Nat.leb_le in Ee.
        intros Hw. exists c1, i, h, l, td. split_and!; try done. intros b Hb%tfind_in.
        by apply (firstof_none _ _ Ef) in Hb. }
      destruct p; try (right; by apply Hb). destruct (best t) as [[i h]|] eqn:Ebt; [|right; by apply Hb].
      destruct h as [g he hr ht hp hf [k|]]; [right; by apply Hb|]. left.
      destruct (judge _ _ _) as [[|]|] eqn:Ej; try done. eexists i, _. by split_and!. }
    + destruct H as (i&h&->&Eb&Ev&Ej&Hw). apply write_fresh_ok in Hw as [Ed ->]. simpl in *.
      destruct Hp as [Hm Hh], Hs as [_ Hl]. destruct s as [[H G D] R' a' m]. simpl in *. subst R' a' m.
      destruct (scan_MI t R a _ i h HM Hl Eb) as (Hb&Hok&Hwf).
      destruct (judge_MI t R a _ h [] Hok Ev Hl Hh Hk Ej) as (l&k&El&Hc&Hcut&Hlen&Hin). simpl in Hlen. subst k.
      destruct (wrh_clean (negb i) (fresh h ([] : list jrec) (S (h_ep h))) t (Disk H G D) Ed Hl Hh) as (Q1&Q2&Q3).
      eexists. split; [apply (vsteps_step N d0 Tau); by apply (r_nothing 0 N d0 i h l H G D R a)|].
      split_and!; try done. simpl. by apply known_teach.
    + destruct H as (c1&i&h&l&td&Et&Hat&Hle&Hno&Hw). apply write_fresh_ok in Hw as [Ed ->]. simpl in Ed.
      destruct (to_repl_sound _ _ _ HM Hr Et) as (s'&Hv&Hr'&_&Et1&Et2&Et3&Et4).
      destruct c1 as [t1 R1 a1 fl1 p1]. simpl in *. subst t1 R1 a1 fl1 p1.
      destruct Hr' as (HR'&Ha'&Hk'&[Hs' Hl']&Hm'&Hh'). simpl in *.
      destruct s' as [d R' a' m]. simpl in *. subst R' a' m.
      assert (home_eq t d) as Hh.
      { intros b o. rewrite Hh'. specialize (Hno b). by destruct (tfind td b) as [[]|]. }
      destruct (wrh_clean (negb i) (fresh h l ep) t d Ed Hl' Hh) as (Q1&Q2&Q3).
      eexists. split.
      * eapply (vsteps_app N d0 [] []); [exact Hv|]. apply (vsteps_step N d0 Tau). by apply (r_fresh 0 N d0 i h l d ep).
      * split_and!; try done. simpl. by apply known_teach.
  - destruct p; try done. simplify_eq. exists s. split; [apply vsteps_nil|].
    eapply rel_narrows; [done|apply narrows_fih| |exact Hr]. intros b ?. by apply knows_teach.
  - destruct p as [| | | |i h k'|]; try done. destruct (k =? k') eqn:Ek; simpl in Hx; [|done].
    apply Nat.eqb_eq in Ek as ->. destruct (tdefinite t) eqn:Ed; [|done]. simplify_eq.
    destruct Hp as [Hm Hh], Hs as [_ Hl]. destruct s as [d R' a' m]. simpl in *. subst.
    destruct HM as [_ Hf]. simpl in Hf. destruct Hf as (_&_&hn&Hn&_).
    eexists. split; [apply (vsteps_step N d0 (Open k')); by eapply (r_open 0 N d0 i h k' d _ _ hn)|].
    split_and!; try done; simpl.
    + intros r b (j&Hj)%elem_of_list_lookup. apply lookup_take_Some in Hj as [Hj _]. apply Hk. by eapply elem_of_list_lookup_2.
    + split; [by apply sub_clean|exact Hl].
  - simplify_eq. exists s. split; [apply vsteps_nil|]. split_and!; try done; simpl.
    + by apply known_teach.
    + apply dsurvives_tsurv. exact (rel_sub _ _ Hr).
Qed.

(** ** Theorems *)
Fixpoint rexecs (c : rcv) (l : list cutev) : res rcv :=
  match l with [] => Ok c | e :: l => match rexec c e with Ok c' => rexecs c' l | No w => No w end end.
Lemma rexecs_sound l c s c' : MI s → rel c s → rexecs c l = Ok c' →
  ∃ s', vsteps (concat (rlab <$> l)) s s' ∧ rel c' s' ∧ MI s'.
Proof.
  revert c s. induction l as [|e l IH]; intros c s HM Hr; simpl.
  - intros [= <-]. exists s. split; [apply vsteps_nil|done].
  - destruct (rexec c e) as [c1|] eqn:E; [|done]. intros Hx.
    destruct (rexec_sound _ _ _ _ HM Hr E) as (s1&Hs1&Hr1).
    assert (MI s1) as HM1 by (destruct Hs1 as (ls&?&_); by eapply steps_MI).
    destruct (IH _ _ HM1 Hr1 Hx) as (s'&Hs'&Hr'&HM'). exists s'. split; [|done]. csimpl. by eapply vsteps_app.
Qed.
Lemma cut_rel c : J c → rel (cut_run c) (model c).
Proof.
  intros []. split_and!; try done; simpl.
  - by apply known_teach, known_teach.
  - apply dsurvives_tsurv, sub_tback.
Qed.

(** An accepted trace, cut after any of its events, then an accepted recovery, cut any number of
    times, is a trace of the model; so the whole is one of the specification ... *)
Theorem accepted_recovery l c c1 ls r :
  J0 d0 c → execs N d0 c l = Ok c1 → rexecs (cut_run c1) ls = Ok r →
  spec_steps 0 d0 (labs N d0 c l ++ concat (rlab <$> ls)) ([], 0) (r_recs r, r_ack r).
Proof.
  intros H0 Hx Hr. pose proof (execs_MI N d0 _ _ _ H0 Hx) as HM. destruct H0 as [Hi Hj].
  destruct (execs_sound N d0 _ _ _ Hj Hx) as [Hs1 Hj1].
  destruct (rexecs_sound _ _ _ _ HM (cut_rel _ Hj1) Hr) as (s'&Hs2&(E1&E2&_)&_).
  destruct (vsteps_app N d0 _ _ _ _ _ Hs1 Hs2) as (l0&Hl0&<-). apply spec_vis.
  rewrite <-E1, <-E2. by eapply (journal_refines 0 N d0 l0 (model c)).
Qed.
Lemma open_fresh c s k c' : MI s → rel c s → rexec c (VOpen k) = Ok c' →
  r_ack c ≤ k ≤ length (r_recs c) ∧ r_recs c' = take k (r_recs c) ∧ r_ack c' = k ∧
  ∀ b o x, L 0 d0 (r_recs c) k b = Some x → ∀ w, poss (home (abs (r_dsk c')) b o) w → w = x o.
Proof.
  intros HM Hr Hx. destruct c as [t R a fl p]. destruct Hr as (HR&Ha&_&_&Hp). unfold rexec in Hx. simpl in *.
  destruct p as [| | | |i h k'|]; try done. destruct (k =? k') eqn:Ek; simpl in Hx; [|done].
  apply Nat.eqb_eq in Ek as ->. destruct (tdefinite t) eqn:Ed; [|done]. injection Hx as <-.
  destruct Hp as [Hm Hh]. destruct s as [d R' a' m]. simpl in *. subst.
  destruct HM as [_ Hf]. simpl in Hf. destruct Hf as (_&_&hn&_&_&_&_&_&_&_&?&?&_&Hhome). split_and!; try done.
  intros b o x HL w. destruct (tdefinite_true _ Ed) as (D1&_&_). intros ->%(definite_true _ (D1 b o)).
  simpl. rewrite <-(Hhome _ o _ HL). apply (Hh b o).
Qed.
Lemma rexec_recs c e c' : rexec c e = Ok c' → (∀ k, e ≠ VOpen k) → r_recs c' = r_recs c ∧ r_ack c' = r_ack c.
Proof.
  intros Hx Hne. destruct c as [t R a fl p]. unfold rexec, write_fresh, to_repl in Hx. simpl in *.
  destruct e; try (by destruct (Hne k)); simplify_eq; try done; repeat (case_match; simplify_eq; simpl in *; try done).
Qed.
Lemma kept ls c s c' : MI s → rel c s → r_ack c ≤ length (r_recs c) → rexecs c ls = Ok c' →
  ∃ m, r_recs c' = take m (r_recs c) ∧ m ≤ length (r_recs c) ∧ r_ack c ≤ r_ack c' ≤ m.
Proof.
  revert c s. induction ls as [|e ls IH]; intros c s HM Hr Ha; simpl.
  - intros [= <-]. exists (length (r_recs c)). by rewrite firstn_all.
  - destruct (rexec c e) as [c1|] eqn:E; [|done]. intros Hx.
    destruct (rexec_sound _ _ _ _ HM Hr E) as (s1&Hs1&Hr1).
    assert (MI s1) as HM1 by (destruct Hs1 as (l0&?&_); by eapply steps_MI).
    assert (∃ m, r_recs c1 = take m (r_recs c) ∧ m ≤ length (r_recs c) ∧ r_ack c ≤ r_ack c1 ≤ m) as (m1&E1&Hm1&Ha1).
    { assert ((∃ k, e = VOpen k) ∨ ∀ k, e ≠ VOpen k) as [[k ->]|Hne] by (destruct e; eauto).
      - destruct (open_fresh _ _ _ _ HM Hr E) as (H1&H2&H3&_). exists k. rewrite H2, H3. split_and!; try done; lia.
      - destruct (rexec_recs _ _ _ E) as [-> ->]; [done|].
        exists (length (r_recs c)). by rewrite firstn_all. }
    destruct (IH _ _ HM1 Hr1) as (m&Em&Hm&Ham); [rewrite E1, take_length; lia|done|].
    rewrite E1, take_length in Hm. exists m. rewrite Em, E1, take_take. split; [f_equal; lia|]. split; lia.
Qed.
(** ... what opens has all that was acknowledged, and the device holds, for good, what the
    records kept lead to. *)
Theorem opened_exactly l c c1 ls r k r' :
  J0 d0 c → execs N d0 c l = Ok c1 → rexecs (cut_run c1) ls = Ok r → rexec r (VOpen k) = Ok r' →
  acked c1 ≤ k ≤ length (recs c1) ∧ r_recs r' = take k (recs c1) ∧
  ∀ b o x, L 0 d0 (recs c1) k b = Some x → ∀ w, poss (home (abs (r_dsk r')) b o) w → w = x o.
Proof.
  intros H0 Hx Hr Ho. pose proof (execs_MI N d0 _ _ _ H0 Hx) as HM.
  destruct (execs_sound N d0 _ _ _ (proj2 H0) Hx) as [_ Hj].
  assert (acked c1 ≤ length (recs c1)) as Hlen by (destruct HM as [_ []]; simpl in *; lia).
  destruct (kept _ _ _ _ HM (cut_rel _ Hj) Hlen Hr) as (m&Em&Hm&Ha). simpl in *.
  destruct (rexecs_sound _ _ _ _ HM (cut_rel _ Hj) Hr) as (s'&_&Hrel&HM').
  destruct (open_fresh _ _ _ _ HM' Hrel Ho) as (H1&H2&_&H4). rewrite Em, take_length in H1. split_and!; [lia|lia| |].
  - rewrite H2, Em, take_take. f_equal. lia.
  - intros b o x HL. apply H4. rewrite Em, L_take by lia. done.
Qed.
End rexec.

Definition check_recovery (n : nat) : rcv → cutev → res rcv := rexec n.
