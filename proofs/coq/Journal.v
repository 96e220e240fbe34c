(** The journal as a transition system: committer, checkpointer, writers around the log,
    quarantine, cuts anywhere, and recovery as steps of its own. Sequence numbers count from
    0, so that "record [j]" has sequence [j], and "[flushed] = [j]" says that the records
    before [j] are known durable. *)
From stdpp Require Import prelude functions list.
From Steadfast Require Import Disk Replay.

Section model.
Context {addr : Type} `{!EqDecision addr} {off byte : Type} (zero : byte).
Context (N : nat) (** blocks of the log *) (d0 : addr → option (off → byte)) (** after mkfs; [None]: free *).
Notation cont := (off → byte).
Notation eff := (eff off byte).

Record rec := Rec {
  r_ep : nat; r_seq : nat; r_pos : nat; r_len : nat;  (** epoch, sequence, position, log blocks *)
  r_fl : nat;                                         (** flushed sequence *)
  r_eff : addr → eff }.
Record hdr := Hdr {
  h_gen : nat; h_ep : nat; h_rep : nat;               (** generation, epoch, epoch of the records *)
  h_tail : nat; h_pos : nat; h_fl : nat;              (** tail sequence, its position, flushed sequence *)
  h_vd : option nat }.                                (** verdict: end of the accepted chain *)
(** A block of the log holds one part of a record, or bytes that validate as none. That a
    record validates only if all its parts are there is the hash assumption. *)
Notation lblk := (option (rec * nat)).

Record disk := Disk {
  home : addr → off → cell byte;
  slots : nat → cell lblk;
  hdrs : bool → cell (option hdr) }.

(** ** What records lead to *)
Definition es (R : list rec) (b : addr) : list eff := (λ r, r_eff r b) <$> R.
Definition sg (R : list rec) (t k : nat) (b : addr) : list eff := es (drop t (take k R)) b.
Definition L (R : list rec) (k : nat) (b : addr) : option cont := lfold zero (d0 b) (es (take k R) b).
Definition posn (R : list rec) (k : nat) : nat := sum_list (r_len <$> take k R).

(** ** Writes of many cells *)
Definition wrm (img : addr → option cont) (h : addr → off → cell byte) : addr → off → cell byte :=
  λ b o, match img b with Some c => begin [] (h b o) (c o) | None => h b o end.
Definition fim (img : addr → option cont) (h : addr → off → cell byte) : addr → off → cell byte :=
  λ b o, match img b with Some _ => finish (h b o) | None => h b o end.
Definition one (b : addr) (c : cont) : addr → option cont := λ a, if decide (a = b) then Some c else None.
(** Which part of a record at [pos] lies in physical block [i]. *)
Definition part (pos len i : nat) : option nat :=
  fst <$> list_find (λ j, (pos + j) `mod` N = i) (seq 0 len).
Definition wrs (r : rec) (s : nat → cell lblk) : nat → cell lblk :=
  λ i, match part (r_pos r) (r_len r) i with Some j => begin [None] (s i) (Some (r, j)) | None => s i end.
Definition fis (r : rec) (s : nat → cell lblk) : nat → cell lblk :=
  λ i, match part (r_pos r) (r_len r) i with Some j => finish (s i) | None => s i end.
Definition wrh (i : bool) (x : hdr) (h : bool → cell (option hdr)) : bool → cell (option hdr) :=
  λ j, if decide (j = i) then begin [None] (h j) (Some x) else h j.
Definition fih (i : bool) (h : bool → cell (option hdr)) : bool → cell (option hdr) :=
  λ j, if decide (j = i) then finish (h j) else h j.

(** What had completed when a flush began. *)
Record snap := Snap { sn_home : addr → off → nat; sn_slots : nat → nat; sn_hdrs : bool → nat }.
Definition snapof (d : disk) : snap :=
  Snap (λ b o, don (home d b o)) (λ i, don (slots d i)) (λ i, don (hdrs d i)).
Definition flushed (s : snap) (d : disk) : Prop :=
  (∀ b o, sn_home s b o ≤ low (home d b o)) ∧ (∀ i, sn_slots s i ≤ low (slots d i)) ∧
  (∀ i, sn_hdrs s i ≤ low (hdrs d i)).
Definition dpersist (d d' : disk) : Prop :=
  (∀ b o, persist (home d b o) (home d' b o)) ∧ (∀ i, persist (slots d i) (slots d' i)) ∧
  (∀ i, persist (hdrs d i) (hdrs d' i)).
Definition dsurvives (d d' : disk) : Prop :=
  (∀ b o, survives (home d b o) (home d' b o)) ∧ (∀ i, survives (slots d i) (slots d' i)) ∧
  (∀ i, survives (hdrs d i) (hdrs d' i)).
(** Recovery is alone: its flush makes everything definite. *)
Definition dclean (d : disk) : disk :=
  Disk (λ b o, clean (home d b o)) (λ i, clean (slots d i)) (λ i, clean (hdrs d i)).

(** ** The running journal *)
Inductive stat :=
  | Used                        (** holds committed content *)
  | Quar (s : nat) (wp : bool)  (** freed by record [s - 1], which covers it if [wp] *)
  | Avail                       (** released to the client *)
  | Claimed.                    (** being written, or written, around the log by a transaction *)
Inductive cpc :=
  | CIdle
  | CW                          (** the record is being written *)
  | CF (sn : snap).             (** written; the flush is under way *)
Inductive kpc :=
  | KIdle
  | KW (u : nat) (img : addr → option cont)              (** images chosen, being written home *)
  | KF (u : nat) (img : addr → option cont) (sn : snap)  (** home; the flush is under way *)
  | KH (u : nat)                                         (** durable; the header is being written *)
  | KHF (u : nat) (sn : snap).                           (** written; the flush is under way *)
Record vol := Vol { nh : bool; hc : hdr; stt : addr → stat; cp : cpc; kp : kpc }.
Notation dt v := (h_tail (hc v)) (only parsing).
Notation ep v := (h_ep (hc v)) (only parsing).

(** The header that ends a checkpoint round. *)
Definition hnew (v : vol) (R : list rec) (u : nat) : hdr :=
  Hdr (S (h_gen (hc v))) (ep v) (ep v) u (posn R u) u None.
Definition kimg (R : list rec) (t u : nat) : addr → option cont :=
  λ b, if tch (sg R t u b) then L R u b else None.

(** What a record may do to a block. *)
Definition layok (d : disk) (R : list rec) (v : vol) (r : rec) (b : addr) : Prop :=
  match r_eff r b with
  | ENone => True
  | EPatch z _ => if z then stt v b = Used ∨ stt v b = Avail else stt v b = Used
  | EFree rv => (stt v b = Used ∨ stt v b = Avail) ∧
      (rv = false → tch (sg R (dt v) (length R) b) = false)
  | ECover chk c _ => stt v b = Claimed ∧
      ∀ o, cur (home d b o) = c o ∧ don (home d b o) = length (old (home d b o)) ∧
           (chk = false → length (old (home d b o)) ≤ low (home d b o))
  end.
Definition stat_after (n : nat) (e : eff) (x : stat) : stat :=
  match e with
  | ENone => x
  | EPatch _ _ => Used
  | EFree _ => Quar (S n) false
  | ECover chk _ fr => if fr then Quar (S n) chk else Used
  end.
Definition upd_st (f : addr → stat) (b : addr) (x : stat) : addr → stat :=
  λ a, if decide (a = b) then x else f a.

(** ** Recovery's view of the disk: the newest values of all cells *)
Definition isbest (x : bool → option hdr) (i : bool) (h : hdr) : Prop :=
  x i = Some h ∧ ∀ h', x (negb i) = Some h' → h_gen h' < h_gen h.
Definition validat (d : disk) (pos seq e : nat) (r : rec) : Prop :=
  r_seq r = seq ∧ r_ep r = e ∧ r_pos r = pos ∧ 0 < r_len r ∧
  ∀ i, i < r_len r → cur (slots d ((pos + i) `mod` N)) = Some (r, i).
Fixpoint valids (d : disk) (e pos seq : nat) (l : list rec) : Prop :=
  match l with [] => True | r :: l => validat d pos seq e r ∧ valids d e (pos + r_len r) (S seq) l end.
(** The chain ends at the first invalid record. *)
Definition chain (d : disk) (h : hdr) (l : list rec) : Prop :=
  valids d (h_rep h) (h_pos h) (h_tail h) l ∧
  ∀ r, ¬ validat d (h_pos h + sum_list (r_len <$> l)) (h_tail h + length l) (h_rep h) r.
Definition matches (d : disk) (r : rec) : Prop :=
  ∀ b c fr, r_eff r b = ECover true c fr → ∀ o, cur (home d b o) = c o.
Definition proved (h : hdr) (l : list rec) : nat := foldr max (h_fl h) (r_fl <$> l).
(** ... or, past what is proved, at the first record that covers what is not there. *)
Definition cutat (d : disk) (h : hdr) (l : list rec) (i : nat) : Prop :=
  i ≤ length l ∧
  (∀ j r, l !! j = Some r → j < i → proved h l ≤ r_seq r → matches d r) ∧
  (i = length l ∨ ∃ r, l !! i = Some r ∧ proved h l ≤ r_seq r ∧ ¬ matches d r).
Definition rimg (d : disk) (l : list rec) : addr → option cont :=
  λ b, if tch (es l b) then Some (λ o, rpl zero (es l b) o (cur (home d b o))) else None.
Definition verdict (h : hdr) (k : nat) : hdr :=
  Hdr (S (h_gen h)) (S (h_ep h)) (h_rep h) (h_tail h) (h_pos h) k (Some k).
(** The header of the empty log after the chain [l]. *)
Definition fresh (h : hdr) (l : list rec) (e : nat) : hdr :=
  Hdr (S (h_gen h)) e e (h_tail h + length l) (h_pos h + sum_list (r_len <$> l)) (h_tail h + length l) None.

Inductive mode :=
  | Run (v : vol)
  | MScan                                      (** after a cut *)
  | MVerd (i : bool) (h : hdr) (l : list rec)  (** header [i] is [h]; a verdict for [l] is being written to the other *)
  | MRepl (i : bool) (h : hdr) (l : list rec)  (** header [i] is a verdict for [l], durable; replay is being written *)
  | MFresh (i : bool) (h : hdr) (k : nat).     (** header [i] is [h]; the empty log's header is being written to the other *)
Record st := St { dk : disk; rs : list rec; lb : nat; md : mode }.

(** What a client sees: [Open k] says that recovery ended with the first [k] records. *)
Inductive label :=
  | Tau | Lay (r : rec) | Ack | Read (b : addr) (c : cont) | Crash | Open (k : nat).

Definition opened (R : list rec) (k : nat) : addr → stat :=
  λ b, match L R k b with Some _ => Used | None => Avail end.

Inductive step : label → st → st → Prop :=
(* the device *)
| s_persist d d' R a m : dpersist d d' → step Tau (St d R a m) (St d' R a m)
| s_crash d d' R a m : dsurvives d d' → step Crash (St d R a m) (St d' R a MScan)
(* data around the log *)
| s_data b c H G D R a v :
    stt v b = Avail →
    step Tau (St (Disk H G D) R a (Run v))
      (St (Disk (wrm (one b c) H) G D) R a (Run (Vol (nh v) (hc v) (upd_st (stt v) b Claimed) (cp v) (kp v))))
| s_data_done b c H G D R a v :
    stt v b = Claimed →
    step Tau (St (Disk H G D) R a (Run v)) (St (Disk (fim (one b c) H) G D) R a (Run v))
(* the committer *)
| s_lay r H G D R a v :
    cp v = CIdle →
    r_seq r = length R → r_fl r = a → r_ep r = ep v → r_pos r = posn R (length R) →
    0 < r_len r → posn R (length R) + r_len r ≤ posn R (dt v) + N →
    (∀ b, layok (Disk H G D) R v r b) →
    step (Lay r) (St (Disk H G D) R a (Run v))
      (St (Disk H (wrs r G) D) (R ++ [r]) a
         (Run (Vol (nh v) (hc v) (λ b, stat_after (length R) (r_eff r b) (stt v b)) CW (kp v))))
| s_commit_flush r H G D R a v :
    cp v = CW → R !! a = Some r →
    step Tau (St (Disk H G D) R a (Run v))
      (St (Disk H (fis r G) D) R a
         (Run (Vol (nh v) (hc v) (stt v) (CF (snapof (Disk H (fis r G) D))) (kp v))))
| s_ack sn d R a v :
    cp v = CF sn → flushed sn d →
    step Ack (St d R a (Run v)) (St d R (length R) (Run (Vol (nh v) (hc v) (stt v) CIdle (kp v))))
| s_release b s wp d R a v :
    kp v = KIdle → stt v b = Quar s wp → s < a ∨ (s = a ∧ (wp = false ∨ a ≤ dt v)) →
    step Tau (St d R a (Run v))
      (St d R a (Run (Vol (nh v) (hc v) (upd_st (stt v) b Avail) (cp v) (kp v))))
| s_read b c d R a v :
    stt v b = Used →
    (∀ o, if tch (sg R (dt v) (length R) b) then ∀ c', L R (length R) b = Some c' → c o = c' o (* cached *)
          else c o = cur (home d b o)) →
    step (Read b c) (St d R a (Run v)) (St d R a (Run v))
(* the checkpointer *)
| s_round H G D R a v :
    kp v = KIdle → dt v < a →
    step Tau (St (Disk H G D) R a (Run v))
      (St (Disk (wrm (kimg R (dt v) a) H) G D) R a
         (Run (Vol (nh v) (hc v) (stt v) (cp v) (KW a (kimg R (dt v) a)))))
| s_round_flush u img H G D R a v :
    kp v = KW u img →
    step Tau (St (Disk H G D) R a (Run v))
      (St (Disk (fim img H) G D) R a
         (Run (Vol (nh v) (hc v) (stt v) (cp v) (KF u img (snapof (Disk (fim img H) G D))))))
| s_tail u img sn H G D R a v :
    kp v = KF u img sn → flushed sn (Disk H G D) →
    step Tau (St (Disk H G D) R a (Run v))
      (St (Disk H G (wrh (negb (nh v)) (hnew v R u) D)) R a
         (Run (Vol (nh v) (hc v) (stt v) (cp v) (KH u))))
| s_tail_flush u H G D R a v :
    kp v = KH u →
    step Tau (St (Disk H G D) R a (Run v))
      (St (Disk H G (fih (negb (nh v)) D)) R a
         (Run (Vol (nh v) (hc v) (stt v) (cp v) (KHF u (snapof (Disk H G (fih (negb (nh v)) D)))))))
| s_round_end u sn d R a v :
    kp v = KHF u sn → flushed sn d →
    step Tau (St d R a (Run v))
      (St d R a (Run (Vol (negb (nh v)) (hnew v R u) (stt v) (cp v) KIdle)))
(* recovery *)
| r_verdict i h l k H G D R a :
    isbest (λ j, cur (D j)) i h → h_vd h = None →
    chain (Disk H G D) h l → cutat (Disk H G D) h l k → k ≠ 0 →
    step Tau (St (Disk H G D) R a MScan)
      (let d := dclean (Disk H G D) in
       St (Disk (home d) (slots d) (wrh (negb i) (verdict h (h_tail h + k)) (hdrs d))) R a
         (MVerd i h (take k l)))
| r_nothing i h l H G D R a :
    isbest (λ j, cur (D j)) i h → h_vd h = None →
    chain (Disk H G D) h l → cutat (Disk H G D) h l 0 →
    step Tau (St (Disk H G D) R a MScan)
      (let d := dclean (Disk H G D) in
       St (Disk (home d) (slots d) (wrh (negb i) (fresh h [] (S (h_ep h))) (hdrs d))) R a
         (MFresh i h (h_tail h)))
| r_judged i h l k H G D R a :
    isbest (λ j, cur (D j)) i h → h_vd h = Some k →
    h_tail h + length l = k → valids (Disk H G D) (h_rep h) (h_pos h) (h_tail h) l →
    step Tau (St (Disk H G D) R a MScan)
      (let d := dclean (Disk H G D) in
       St (Disk (wrm (rimg d l) (home d)) (slots d) (hdrs d)) R a (MRepl i h l))
| r_replay i h l d R a :
    step Tau (St d R a (MVerd i h l))
      (let d' := dclean d in
       St (Disk (wrm (rimg d' l) (home d')) (slots d') (hdrs d')) R a
         (MRepl (negb i) (verdict h (h_tail h + length l)) l))
| r_fresh i h l d e R a :
    h_ep h ≤ e → (* the epoch that the verdict announced, or, resumed, the next *)
    step Tau (St d R a (MRepl i h l))
      (let d' := dclean d in
       St (Disk (home d') (slots d') (wrh (negb i) (fresh h l e) (hdrs d'))) R a
         (MFresh i h (h_tail h + length l)))
| r_open i h k d R a hn :
    cur (hdrs d (negb i)) = Some hn →
    step (Open k) (St d R a (MFresh i h k))
      (St (dclean d) (take k R) k (Run (Vol (negb i) hn (opened R k) CIdle KIdle))).

(** ** The specification: a list of records, of which a crash keeps a prefix that contains
    everything acknowledged *)
Definition spec : Type := list rec * nat.
Inductive spec_step : label → spec → spec → Prop :=
| ss_tau s : spec_step Tau s s
| ss_crash s : spec_step Crash s s
| ss_lay r R a : spec_step (Lay r) (R, a) (R ++ [r], a)
| ss_ack R a : spec_step Ack (R, a) (R, length R)
| ss_read b c c' R a : L R (length R) b = Some c' → (∀ o, c o = c' o) → spec_step (Read b c) (R, a) (R, a)
| ss_open k R a : a ≤ k → k ≤ length R → spec_step (Open k) (R, a) (take k R, k).

Inductive steps : list label → st → st → Prop :=
| steps_nil s : steps [] s s
| steps_cons l ls s1 s2 s3 : step l s1 s2 → steps ls s2 s3 → steps (l :: ls) s1 s3.
Inductive spec_steps : list label → spec → spec → Prop :=
| sp_nil s : spec_steps [] s s
| sp_cons l ls s1 s2 s3 : spec_step l s1 s2 → spec_steps ls s2 s3 → spec_steps (l :: ls) s1 s3.

(** After mkfs: an empty log of epoch 1 before which nothing of that epoch was written, all
    durable. *)
Definition h0 : hdr := Hdr 1 1 1 0 0 0 None.
Definition init (s : st) : Prop := ∃ d,
  s = St d [] 0 (Run (Vol false h0 (opened [] 0) CIdle KIdle)) ∧
  (∀ b o c, d0 b = Some c → home d b o = Cell [] (c o) 0 0 false) ∧
  (∀ b o, quiet (home d b o)) ∧
  (∀ i, slots d i = Cell [] None 0 0 false) ∧
  hdrs d false = Cell [] (Some h0) 0 0 false ∧ hdrs d true = Cell [] None 0 0 false.
End model.
