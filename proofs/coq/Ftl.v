(** A disk that returns to its last flush: the specification, what each operation of an
    implementation has to keep (SCFTL §4.4), and what follows of every trace.

    Per-operation correctness implies behavioural correctness ([behaves]: every trace of the
    implementation is one of the specification), and that implies snapshot consistency
    ([snapshot], which speaks of the events of a trace and of nothing else). The implementation
    is arbitrary: memory, flash, program points, and what a cut may make of flash. *)
From stdpp Require Import prelude functions list relations.

Section ftl.
Context {sector content : Type} `{!EqDecision sector}.
(** What a sector that was never written holds; which sectors there are; how many writes and
    trims there may be between two flushes. *)
Context (zero : content) (inside : sector → bool) (bound : nat).
Notation disk := (sector → content).

Inductive op :=
  | Write (a : sector) (d : content)
  | Trim (P : sector → bool)
  | Relocate | Erase | Checkpoint
  | Flush.

(** What is seen from outside. An operation is called and is done, is refused, fails, or is cut;
    a mount returns, fails, or is cut. *)
Inductive event :=
  | Call (o : op) | Done | Refused | Failed
  | Read (a : sector) (d : content)
  | Cut | Mount | Mounted.

(** ** The specification *)
Record sdisk := T { vol : disk; stb : disk; cnt : nat }.
Inductive mode := Idle | In (o : op) | Off | Mounting.

(** What an operation does to what is read. *)
Definition acts (o : op) (V : disk) : disk :=
  match o with
  | Write a d => <[a := d]> V
  | Trim P => λ a, if P a then zero else V a
  | _ => V
  end.
Definition after (o : op) (t : sdisk) : sdisk :=
  match o with
  | Write _ _ | Trim _ => T (acts o (vol t)) (stb t) (S (cnt t))
  | Relocate | Erase | Checkpoint => t
  | Flush => T (vol t) (vol t) 0
  end.
Definition fits (o : op) : Prop :=
  match o with
  | Write a _ => inside a = true
  | Trim P => ∀ a, P a = true → inside a = true
  | _ => True
  end.
(** Only writes and trims are refused: outside the disk, or when the epoch is full. *)
Definition refusable (o : op) (t : sdisk) : Prop :=
  match o with Write _ _ | Trim _ => ¬ fits o ∨ bound ≤ cnt t | _ => False end.
(** What is stable when an operation does not return. *)
Definition leaves (o : op) (t : sdisk) (s : disk) : Prop := s = stb t ∨ (o = Flush ∧ s = vol t).

Inductive sstep : event → mode * sdisk → mode * sdisk → Prop :=
  | ss_call o t : sstep (Call o) (Idle, t) (In o, t)
  | ss_done o t : fits o → sstep Done (In o, t) (Idle, after o t)
  | ss_refused o t : refusable o t → sstep Refused (In o, t) (Idle, t)
  | ss_failed o t s : leaves o t s → sstep Failed (In o, t) (Off, T s s 0)
  | ss_read a t : inside a = true → sstep (Read a (vol t a)) (Idle, t) (Idle, t)
  | ss_cut_idle t : sstep Cut (Idle, t) (Off, T (stb t) (stb t) 0)
  | ss_cut_in o t s : leaves o t s → sstep Cut (In o, t) (Off, T s s 0)
  | ss_mount t : sstep Mount (Off, t) (Mounting, t)
  | ss_mounted t : sstep Mounted (Mounting, t) (Idle, T (stb t) (stb t) 0)
  | ss_mount_failed t : sstep Failed (Mounting, t) (Off, t)
  | ss_mount_cut t : sstep Cut (Mounting, t) (Off, t).
Definition blank : mode * sdisk := (Off, T (λ _, zero) (λ _, zero) 0).

(** Traces grow at their end. *)
Inductive strace : list event → mode * sdisk → Prop :=
  | st_nil : strace [] blank
  | st_snoc E e x y : strace E x → sstep e x y → strace (E ++ [e]) y.

(** ** An implementation *)
Section implementation.
Context {mem fl pc : Type}.
(** What may be in flash after a cut, or after the layer stopped and was mounted again. *)
Context (cut : fl → fl → Prop).
(** An operation's program points: where it begins; one step, with at most one command to flash,
    so that a cut may fall between any two; where it ends. *)
Context (enter : op → mem → pc → Prop) (step : pc * fl → pc * fl → Prop).
Context (done refused : pc → mem → Prop) (fails : pc → Prop).
(** A mount begins with what is in flash alone. *)
Context (menter : fl → pc → Prop).
Context (read : mem → fl → sector → content → Prop).
Context (new : fl → Prop).

Inductive conf := CIdle (m : mem) (f : fl) | CIn (o : op) (p : pc) (f : fl) | COff (f : fl) | CMounting (p : pc) (f : fl).
(** [None]: nothing is seen. *)
Inductive istep : option event → conf → conf → Prop :=
  | is_call o m f p : enter o m p → istep (Some (Call o)) (CIdle m f) (CIn o p f)
  | is_step o p f p' f' : step (p, f) (p', f') → istep None (CIn o p f) (CIn o p' f')
  | is_done o p f m : done p m → istep (Some Done) (CIn o p f) (CIdle m f)
  | is_refused o p f m : refused p m → istep (Some Refused) (CIn o p f) (CIdle m f)
  | is_failed o p f c : fails p → cut f c → istep (Some Failed) (CIn o p f) (COff c)
  | is_read m f a d : inside a = true → read m f a d → istep (Some (Read a d)) (CIdle m f) (CIdle m f)
  | is_cut_idle m f c : cut f c → istep (Some Cut) (CIdle m f) (COff c)
  | is_cut_in o p f c : cut f c → istep (Some Cut) (CIn o p f) (COff c)
  | is_mount f p : menter f p → istep (Some Mount) (COff f) (CMounting p f)
  | is_mstep p f p' f' : step (p, f) (p', f') → istep None (CMounting p f) (CMounting p' f')
  | is_mounted p f m : done p m → istep (Some Mounted) (CMounting p f) (CIdle m f)
  | is_mount_failed p f c : fails p → cut f c → istep (Some Failed) (CMounting p f) (COff c)
  | is_mount_cut p f c : cut f c → istep (Some Cut) (CMounting p f) (COff c).
Inductive itrace : list event → conf → Prop :=
  | it_nil f : new f → itrace [] (COff f)
  | it_tau E x y : itrace E x → istep None x y → itrace E y
  | it_snoc E e x y : itrace E x → istep (Some e) x y → itrace (E ++ [e]) y.

(** ** Per-operation correctness *)
(** Abstraction and crash relation, representation and crash invariant. *)
Context (AR : mem → fl → sdisk → Prop) (CR : fl → disk → Prop) (RI : mem → fl → Prop) (CI : fl → Prop).

(** The operation was called with memory [m] and flash [f], and has come to [p] and [f']. *)
Definition during (o : op) (m : mem) (f : fl) (p : pc) (f' : fl) : Prop :=
  ∃ p0, enter o m p0 ∧ rtc step (p0, f) (p, f').
Definition mduring (c : fl) (p : pc) (f : fl) : Prop := ∃ p0, menter c p0 ∧ rtc step (p0, c) (p, f).

(** Of one operation. Type A speaks of the relations, type B of the invariants. *)
Record op_correct (o : op) : Prop := OpCorrect {
  done_A m f t p f' m' : RI m f → AR m f t → during o m f p f' → done p m' → fits o ∧ AR m' f' (after o t);
  done_B m f p f' m' : RI m f → during o m f p f' → done p m' → RI m' f';
  refused_A m f t p f' m' : RI m f → AR m f t → during o m f p f' → refused p m' → refusable o t ∧ AR m' f' t;
  refused_B m f p f' m' : RI m f → during o m f p f' → refused p m' → RI m' f';
  cut_A m f t p f' c : RI m f → AR m f t → during o m f p f' → cut f' c →
    CR c (stb t) ∨ (o = Flush ∧ CR c (vol t));
  cut_B m f p f' c : RI m f → during o m f p f' → cut f' c → CI c }.
(** Of recovery. That it may be cut and begun again is [again]. *)
Record mount_correct : Prop := MountCorrect {
  mounted_A c s p f m : CI c → CR c s → mduring c p f → done p m → AR m f (T s s 0);
  mounted_B c p f m : CI c → mduring c p f → done p m → RI m f;
  again_A c s p f c' : CI c → CR c s → mduring c p f → cut f c' → CR c' s;
  again_B c p f c' : CI c → mduring c p f → cut f c' → CI c' }.
(** Of reading, of a cut between two operations, and of a new disk. *)
Record rest_correct : Prop := RestCorrect {
  read_ok m f t a d : RI m f → AR m f t → inside a = true → read m f a d → d = vol t a;
  idle_A m f t c : RI m f → AR m f t → cut f c → CR c (stb t);
  idle_B m f c : RI m f → cut f c → CI c;
  new_A f : new f → CR f (λ _, zero);
  new_B f : new f → CI f }.
Definition per_operation : Prop := (∀ o, op_correct o) ∧ mount_correct ∧ rest_correct.

(** ** Behavioural correctness *)
Definition sim (x : conf) (y : mode * sdisk) : Prop :=
  match x, y.1 with
  | CIdle m f, Idle => RI m f ∧ AR m f y.2
  | CIn o p f, In o' => o = o' ∧ ∃ m f0, RI m f0 ∧ AR m f0 y.2 ∧ during o m f0 p f
  | COff c, Off => CI c ∧ CR c (stb y.2)
  | CMounting p f, Mounting => ∃ c, CI c ∧ CR c (stb y.2) ∧ mduring c p f
  | _, _ => False
  end.
Lemma during_step o m f p f1 p' f' : during o m f p f1 → step (p, f1) (p', f') → during o m f p' f'.
Proof. intros (p0&?&?) ?. exists p0. split; [done|]. by eapply rtc_r. Qed.
Lemma mduring_step c p f1 p' f' : mduring c p f1 → step (p, f1) (p', f') → mduring c p' f'.
Proof. intros (p0&?&?) ?. exists p0. split; [done|]. by eapply rtc_r. Qed.

(** The square for an operation that does not return. *)
Lemma unreturned o m f0 p f c t : op_correct o → RI m f0 → AR m f0 t → during o m f0 p f → cut f c →
  ∃ s, leaves o t s ∧ CI c ∧ CR c s.
Proof.
  intros Ho HR HA Hd Hc. pose proof (cut_B _ Ho _ _ _ _ _ HR Hd Hc) as HB.
  destruct (cut_A _ Ho _ _ _ _ _ _ HR HA Hd Hc) as [?|[-> ?]]; eexists; split_and!; try done; [by left|by right].
Qed.
Lemma sim_step x y e x' : per_operation → sim x y → istep e x x' →
  match e with Some e => ∃ y', sstep e y y' ∧ sim x' y' | None => sim x' y end.
Proof.
  intros (HO&HM&HR) Hs Hi. destruct y as [md t]. destruct Hi; destruct md; try done; simpl in Hs.
  - destruct Hs as [??]. eexists. split; [constructor|]. split; [done|]. exists m, f. split_and!; try done.
    exists p. by split.
  - destruct Hs as (->&m&f0&?&?&?). split; [done|]. exists m, f0. split_and!; try done. by eapply during_step.
  - destruct Hs as (->&m0&f0&?&?&?).
    destruct (done_A _ (HO o0) m0 f0 t p f m) as [Hf HA]; [done..|].
    eexists. split; [by constructor|]. split; [by eapply (done_B _ (HO o0))|done].
  - destruct Hs as (->&m0&f0&?&?&?).
    destruct (refused_A _ (HO o0) m0 f0 t p f m) as [Hf HA]; [done..|].
    eexists. split; [by constructor|]. split; [by eapply (refused_B _ (HO o0))|done].
  - destruct Hs as (->&m0&f0&?&?&?).
    destruct (unreturned o0 m0 f0 p f c t) as (s&?&?&?); [done..|].
    eexists. split; [by eapply ss_failed|]. by split.
  - destruct Hs as [??]. rewrite (read_ok HR m f t a d) by done. exists (Idle, t). split; [by constructor|]. by split.
  - destruct Hs as [??]. eexists. split; [by constructor|].
    split; [by eapply (idle_B HR)|by eapply (idle_A HR m f t)].
  - destruct Hs as (->&m0&f0&?&?&?).
    destruct (unreturned o0 m0 f0 p f c t) as (s&?&?&?); [done..|].
    eexists. split; [by eapply ss_cut_in|]. by split.
  - destruct Hs as [??]. eexists. split; [by constructor|]. exists f. split_and!; try done. exists p. by split.
  - destruct Hs as (c&?&?&?). exists c. split_and!; try done. by eapply mduring_step.
  - destruct Hs as (c&?&?&?). eexists. split; [by constructor|].
    split; [by eapply (mounted_B HM)|by eapply (mounted_A HM)].
  - destruct Hs as (c0&?&?&?). eexists. split; [by eapply ss_mount_failed|].
    split; [by eapply (again_B HM)|by eapply (again_A HM)].
  - destruct Hs as (c0&?&?&?). eexists. split; [by eapply ss_mount_cut|].
    split; [by eapply (again_B HM)|by eapply (again_A HM)].
Qed.
(** Per-operation correctness implies behavioural correctness. *)
Theorem behaves E x : per_operation → itrace E x → ∃ y, strace E y ∧ sim x y.
Proof.
  intros HP. induction 1 as [f Hn|E x x' _ (y&Hy&Hs) Hi|E e x x' _ (y&Hy&Hs) Hi].
  - exists blank. split; [constructor|]. destruct HP as (_&_&HR).
    split; [by apply (new_B HR)|by apply (new_A HR)].
  - exists y. split; [done|]. exact (sim_step _ _ _ _ HP Hs Hi).
  - destruct (sim_step _ _ _ _ HP Hs Hi) as (y'&?&?). exists y'. split; [by econstructor|done].
Qed.
(** ** Per-operation correctness, point by point *)
(** It is enough to show it as an engine does that runs one step after the other, with
    invariants for loops: [P] holds from the call on, and wherever it holds a cut does no harm. *)
Theorem op_by_points o (P : sdisk → pc → fl → Prop) :
  (∀ m f, RI m f → ∃ t, AR m f t) →
  (∀ m f t p, RI m f → AR m f t → enter o m p → P t p f) →
  (∀ t p f p' f', P t p f → step (p, f) (p', f') → P t p' f') →
  (∀ t p f m, P t p f → done p m → fits o ∧ RI m f ∧ AR m f (after o t)) →
  (∀ t p f m, P t p f → refused p m → refusable o t ∧ RI m f ∧ AR m f t) →
  (∀ t p f c, P t p f → cut f c → CI c ∧ (CR c (stb t) ∨ (o = Flush ∧ CR c (vol t)))) →
  op_correct o.
Proof.
  intros HA He Hs Hd Hr Hc.
  assert (∀ m f t p f', RI m f → AR m f t → during o m f p f' → P t p f') as HP.
  { intros m f t p f' HR Ht (p0&Hp&Hss). apply (He m f t) in Hp; [|done..]. clear He.
    remember (p0, f) as x eqn:Ex. remember (p, f') as y eqn:Ey. clear HR Ht. revert p0 f Ex Hp.
    induction Hss as [x|x [p1 f1] y Hx _ IH]; intros p0 f -> Hp; [by simplify_eq|].
    apply (IH Ey p1 f1 eq_refl). by eapply Hs. }
  constructor.
  - intros m f t p f' m' HR Ht Hdu Hdn. edestruct Hd as (?&?&?); [by eapply HP|done|done].
  - intros m f p f' m' HR Hdu Hdn. destruct (HA m f HR) as [t Ht]. edestruct Hd as (?&?&?); [by eapply HP|done|done].
  - intros m f t p f' m' HR Ht Hdu Hdn. edestruct Hr as (?&?&?); [by eapply HP|done|done].
  - intros m f p f' m' HR Hdu Hdn. destruct (HA m f HR) as [t Ht]. edestruct Hr as (?&?&?); [by eapply HP|done|done].
  - intros m f t p f' c HR Ht Hdu Hcu. edestruct Hc as [? ?]; [by eapply HP|done|done].
  - intros m f p f' c HR Hdu Hcu. destruct (HA m f HR) as [t Ht]. edestruct Hc as [? ?]; [by eapply HP|done|done].
Qed.
Theorem mount_by_points (P : disk → pc → fl → Prop) :
  (∀ c, CI c → ∃ s, CR c s) →
  (∀ c s p, CI c → CR c s → menter c p → P s p c) →
  (∀ s p f p' f', P s p f → step (p, f) (p', f') → P s p' f') →
  (∀ s p f m, P s p f → done p m → RI m f ∧ AR m f (T s s 0)) →
  (∀ s p f c, P s p f → cut f c → CI c ∧ CR c s) →
  mount_correct.
Proof.
  intros HC He Hs Hd Hc.
  assert (∀ c s p f, CI c → CR c s → mduring c p f → P s p f) as HP.
  { intros c s p f HI HR (p0&Hp&Hss). apply (He c s) in Hp; [|done..].
    remember (p0, c) as x eqn:Ex. remember (p, f) as y eqn:Ey. clear He HI HR. revert p0 c Ex Hp.
    induction Hss as [x|x [p1 f1] y Hx _ IH]; intros p0 c -> Hp; [by simplify_eq|].
    apply (IH Ey p1 f1 eq_refl). by eapply Hs. }
  constructor.
  - intros c s p f m HI HR Hdu Hdn. edestruct Hd as [??]; [by eapply HP|done|done].
  - intros c p f m HI Hdu Hdn. destruct (HC c HI) as [s HR]. edestruct Hd as [??]; [by eapply HP|done|done].
  - intros c s p f c' HI HR Hdu Hcu. edestruct Hc as [??]; [by eapply HP|done|done].
  - intros c p f c' HI Hdu Hcu. destruct (HC c HI) as [s HR]. edestruct Hc as [??]; [by eapply HP|done|done].
Qed.
End implementation.

(** ** Snapshot consistency, of traces alone *)
(** What a disk that begins with [B] holds after some events, what it held when its last flush
    that returned was called, and the call that is open. *)
Record moment := At { now : disk; flushed : disk; open : option op }.
Definition track (x : moment) (e : event) : moment :=
  match e, open x with
  | Call o, _ => At (now x) (flushed x) (Some o)
  | Done, Some o => At (acts o (now x)) (match o with Flush => now x | _ => flushed x end) None
  | Read _ _, _ => x
  | _, _ => At (now x) (flushed x) None
  end.
Definition at_end (B : disk) (L : list event) : moment := foldl track (At B B None) L.

Definition quiet (e : event) : Prop :=
  match e with Cut | Failed | Mount | Mounted => False | _ => True end.
(** A life: from a mount that returned until something stops it. Its reads say what was written. *)
Definition life (B : disk) (L : list event) : Prop :=
  Forall quiet L ∧ ∀ L1 a d L2, L = L1 ++ Read a d :: L2 → d = now (at_end B L1) a.
(** What stops it, and mounts that do not return. *)
Definition down (X : list event) : Prop :=
  (∃ X', X = Cut :: X' ∨ X = Failed :: X') ∧ Mounted ∉ X.
(** What the next life begins with: the disk as of the last flush that returned, or, if the life
    ended in a flush, as of that one. It is one moment for all sectors. *)
Definition returns_to (B : disk) (L : list event) (B' : disk) : Prop :=
  B' = flushed (at_end B L) ∨ (open (at_end B L) = Some Flush ∧ B' = now (at_end B L)).
(** The events end in a mount that returned, and then the disk holds [B]. *)
Inductive lived : list event → disk → Prop :=
  | l_first X : Mounted ∉ X → lived (X ++ [Mounted]) (λ _, zero)
  | l_next E B L X B' : lived E B → life B L → down X → returns_to B L B' → lived (E ++ L ++ X ++ [Mounted]) B'.
Definition consistent (E : list event) : Prop :=
  Mounted ∉ E ∨ ∃ E0 B L X, lived E0 B ∧ E = E0 ++ L ++ X ∧ life B L ∧ (X = [] ∨ down X).

Lemma at_end_snoc B L e : at_end B (L ++ [e]) = track (at_end B L) e.
Proof. unfold at_end. by rewrite foldl_app. Qed.
Lemma life_nil B : life B [].
Proof. split; [constructor|]. intros [|??] ?? ? [=]. Qed.
Lemma life_snoc B L e : life B L → quiet e → (∀ a d, e = Read a d → d = now (at_end B L) a) → life B (L ++ [e]).
Proof.
  intros [HQ HL] Hq He. split; [by apply Forall_app; split; [|constructor]|]. intros L1 a d L2 HE.
  destruct L2 as [|x L2 _] using rev_ind.
  - apply app_inj_tail in HE as [-> ->]. by apply He.
  - rewrite app_comm_cons, app_assoc in HE. apply app_inj_tail in HE as [-> _]. by eapply HL.
Qed.
Lemma down_snoc X e : down X → e ≠ Mounted → down (X ++ [e]).
Proof.
  intros [(X'&HX) Hm] He. split; [exists (X' ++ [e]); destruct HX as [->| ->]; auto|].
  intros [?|?%elem_of_list_singleton]%elem_of_app; congruence.
Qed.
Lemma not_mounted_snoc E e : Mounted ∉ E → e ≠ Mounted → Mounted ∉ E ++ [e].
Proof. intros ?? [?|?%elem_of_list_singleton]%elem_of_app; congruence. Qed.

(** What a specification's state says of the events before it. *)
Definition told (E : list event) (y : mode * sdisk) : Prop :=
  match y.1 with
  | Idle => ∃ E0 B L, lived E0 B ∧ E = E0 ++ L ∧ life B L ∧ at_end B L = At (vol y.2) (stb y.2) None
  | In o => ∃ E0 B L, lived E0 B ∧ E = E0 ++ L ∧ life B L ∧ at_end B L = At (vol y.2) (stb y.2) (Some o)
  | _ => (Mounted ∉ E ∧ stb y.2 = λ _, zero) ∨
         ∃ E0 B L X, lived E0 B ∧ E = E0 ++ L ++ X ∧ life B L ∧ down X ∧ returns_to B L (stb y.2)
  end.
Lemma told_down E0 B L e s v n md : lived E0 B → life B L → e = Cut ∨ e = Failed → returns_to B L s →
  md = Off ∨ md = Mounting → told ((E0 ++ L) ++ [e]) (md, T v s n).
Proof.
  intros Hl HL He Hs Hm. assert (down [e]) as Hd.
  { split; [exists []; destruct He as [->| ->]; auto|]. intros ?%elem_of_list_singleton. destruct He; congruence. }
  destruct Hm as [->| ->]; right; exists E0, B, L, [e]; rewrite app_assoc; done.
Qed.
Lemma spec_told E y : strace E y → told E y.
Proof.
  induction 1 as [|E e x y _ IH Hs].
  - left. split; [by apply not_elem_of_nil|done].
  - destruct Hs as [o t|o t Hf|o t Hf|o t s Hl|a t Ha|t|o t s Hl|t|t|t|t].
    + destruct IH as (E0&B&L&?&->&?&HL). exists E0, B, (L ++ [Call o]). rewrite app_assoc.
      split_and!; try done; [by apply life_snoc|]. rewrite at_end_snoc, HL. done.
    + destruct IH as (E0&B&L&?&->&?&HL). exists E0, B, (L ++ [Done]). rewrite app_assoc.
      split_and!; try done; [by apply life_snoc|]. rewrite at_end_snoc, HL. by destruct o.
    + destruct IH as (E0&B&L&?&->&?&HL). exists E0, B, (L ++ [Refused]). rewrite app_assoc.
      split_and!; try done; [by apply life_snoc|]. rewrite at_end_snoc, HL. done.
    + destruct IH as (E0&B&L&?&->&?&HL). eapply told_down; eauto. unfold returns_to. rewrite HL. simpl.
      destruct Hl as [->|[-> ->]]; auto.
    + destruct IH as (E0&B&L&?&->&?&HL). exists E0, B, (L ++ [Read a (vol t a)]). rewrite app_assoc.
      split_and!; try done; [apply life_snoc; try done; intros a' d [= <- <-]; by rewrite HL|].
      rewrite at_end_snoc, HL. done.
    + destruct IH as (E0&B&L&?&->&?&HL). eapply told_down; eauto. unfold returns_to. rewrite HL. by left.
    + destruct IH as (E0&B&L&?&->&?&HL). eapply told_down; eauto. unfold returns_to. rewrite HL. simpl.
      destruct Hl as [->|[-> ->]]; auto.
    + destruct IH as [[??]|(E0&B&L&X&?&->&?&?&?)]; [left; split; [by apply not_mounted_snoc|done]|].
      right. exists E0, B, L, (X ++ [Mount]). rewrite !app_assoc. split_and!; try done. by apply down_snoc.
    + destruct IH as [[? Hz]|(E0&B&L&X&?&->&?&?&?)]; simpl in *.
      * exists (E ++ [Mounted]), (λ _, zero), []. rewrite app_nil_r, Hz. split_and!; try done; [by constructor|apply life_nil].
      * exists (E0 ++ L ++ X ++ [Mounted]), (stb t), []. rewrite app_nil_r, <-!app_assoc.
        split_and!; try done; [by eapply l_next|apply life_nil].
    + destruct IH as [[??]|(E0&B&L&X&?&->&?&?&?)]; [left; split; [by apply not_mounted_snoc|done]|].
      right. exists E0, B, L, (X ++ [Failed]). rewrite !app_assoc. split_and!; try done. by apply down_snoc.
    + destruct IH as [[??]|(E0&B&L&X&?&->&?&?&?)]; [left; split; [by apply not_mounted_snoc|done]|].
      right. exists E0, B, L, (X ++ [Cut]). rewrite !app_assoc. split_and!; try done. by apply down_snoc.
Qed.
(** Behavioural correctness implies snapshot consistency. *)
Theorem snapshot E y : strace E y → consistent E.
Proof.
  intros Hs%spec_told. destruct y as [[|o| |] t]; simpl in Hs.
  1, 2: destruct Hs as (E0&B&L&?&->&?&?); right; exists E0, B, L, []; rewrite app_nil_r; auto.
  all: destruct Hs as [[??]|(E0&B&L&X&?&->&?&?&?)]; [by left|right; exists E0, B, L, X; auto].
Qed.

(** What was told is one thing only: where a trace's lives are is in its events. *)
Lemma last_mounted E1 R1 E2 R2 : E1 ++ Mounted :: R1 = E2 ++ Mounted :: R2 → Mounted ∉ R1 → Mounted ∉ R2 → E1 = E2 ∧ R1 = R2.
Proof.
  intros HE H1 H2. apply app_eq_inv in HE as [([|e l]&He&Hr)|([|e l]&He&Hr)]; simplify_list_eq; try done.
  - destruct H1. set_solver.
  - destruct H2. set_solver.
Qed.
Lemma quiet_down L1 X1 L2 X2 : L1 ++ X1 = L2 ++ X2 → Forall quiet L1 → Forall quiet L2 → down X1 → down X2 → L1 = L2 ∧ X1 = X2.
Proof.
  assert (∀ e l X, down X → Forall quiet (e :: l) → ∀ X', X ≠ e :: l ++ X') as Hn.
  { intros e l X [(X0&HX) _] HQ X' ->. apply Forall_cons in HQ as [HQ _].
    destruct HX as [[= -> _]|[= -> _]]; done. }
  intros HE Q1 Q2 D1 D2. apply app_eq_inv in HE as [([|e l]&->&->)|([|e l]&->&->)]; rewrite ?app_nil_r in *; try done.
  - apply Forall_app in Q1 as [_ Q1]. by eapply Hn in D2.
  - apply Forall_app in Q2 as [_ Q2]. by eapply Hn in D1.
Qed.
Lemma quiet_mounted L : Forall quiet L → Mounted ∉ L.
Proof. intros HQ Hm. rewrite Forall_forall in HQ. by apply HQ in Hm. Qed.
Lemma lived_mounted E B : lived E B → ∃ E', E = E' ++ [Mounted].
Proof. intros [X _|E0 B0 L X B' _ _ _ _]; [by exists X|exists (E0 ++ L ++ X)]. by rewrite !app_assoc. Qed.
Lemma quiet_not_down L X : Forall quiet (L ++ X) → X = [] ∨ down X → X = [].
Proof.
  intros [_ HQ]%Forall_app [->|[(X'&HX) _]]; [done|].
  destruct HX as [->| ->]; by apply Forall_cons in HQ as [[] _].
Qed.
(** Two lives in a row. *)
Lemma two_lives E L X L' : consistent (E ++ Mounted :: L ++ X ++ Mounted :: L') →
  Forall quiet L → down X → Forall quiet L' →
  ∃ B B', life B L ∧ returns_to B L B' ∧ life B' L'.
Proof.
  intros [Hn|(E0&B'&L1&X1&Hl&HE&HL1&HX1)] HL HX HL'; [set_solver|].
  destruct (lived_mounted _ _ Hl) as [E1 ->].
  assert (Mounted ∉ L1 ++ X1) as Hm1.
  { apply not_elem_of_app. split; [by apply quiet_mounted, HL1|]. destruct HX1 as [->|HX1]; [apply not_elem_of_nil|apply HX1]. }
  assert ((E ++ Mounted :: L ++ X) ++ Mounted :: L' = E1 ++ Mounted :: L1 ++ X1) as HE2.
  { rewrite <-!app_assoc in HE. simpl in HE. rewrite <-!app_assoc. simpl. by rewrite <-app_assoc. }
  clear HE. rename HE2 into HE.
  apply last_mounted in HE as [<- ->]; [|by apply quiet_mounted|done].
  rewrite (quiet_not_down L1 X1) in * by done. rewrite app_nil_r in *. inversion Hl as [X0 Hx HE|E2 B L2 X2 B2 Hl2 HL2 HX2 Hr HE]; subst.
  - apply app_inj_tail in HE as [-> _]. set_solver.
  - rewrite !app_assoc in HE. apply app_inj_tail in HE as [HE _].
    destruct (lived_mounted _ _ Hl2) as [E3 ->]. rewrite <-!app_assoc in HE. simpl in HE.
    assert (∀ L X, Forall quiet L → down X → Mounted ∉ L ++ X) as Hq.
    { intros ?? ?%quiet_mounted [_ ?]. by apply not_elem_of_app. }
    apply last_mounted in HE as [-> HE]; [|by apply Hq; [apply HL2|]|by apply Hq].
    apply quiet_down in HE as [-> ->]; [|by try apply HL2..]. eauto.
Qed.
Lemma at_end_app x L1 L2 : foldl track x (L1 ++ L2) = foldl track (foldl track x L1) L2.
Proof. apply foldl_app. Qed.
Lemma track_now x y L : now x = now y → open x = open y → now (foldl track x L) = now (foldl track y L).
Proof.
  revert x y. induction L as [|e L IH]; intros x y Hn Ho; [done|]. simpl.
  destruct e; apply IH; simpl; rewrite <-?Ho; try done; destruct (open x); simpl; by rewrite ?Hn.
Qed.
Lemma track_flushed x L : Call Flush ∉ L → open x ≠ Some Flush → flushed (foldl track x L) = flushed x.
Proof.
  revert x. induction L as [|e L IH]; intros x Hn Ho; [done|]. apply not_elem_of_cons in Hn as [He Hn]. simpl.
  rewrite IH; [|done|]; destruct e; simpl; try done; [by destruct (open x) as [[]|]|congruence|by destruct (open x)].
Qed.
Lemma track_open x L : Call Flush ∉ L → open x ≠ Some Flush → open (foldl track x L) ≠ Some Flush.
Proof.
  revert x. induction L as [|e L IH]; intros x Hn Ho; [done|]. apply not_elem_of_cons in Hn as [He Hn]. simpl.
  apply IH; [done|]. destruct e; simpl; try done; [congruence|by destruct (open x)].
Qed.
(** In a user's words: what was read after the last flush and what is read after cut and mounts
    is the same disk, changed by what was written meanwhile, and since. *)
Theorem back_to_last_flush E y E0 L1 L2 X L3 :
  strace E y → E = E0 ++ Mounted :: (L1 ++ Call Flush :: Done :: L2) ++ X ++ Mounted :: L3 →
  Forall quiet L1 → Forall quiet L2 → Call Flush ∉ L2 → down X → Forall quiet L3 →
  ∃ D, life D L2 ∧ life D L3.
Proof.
  intros Hs -> Q1 Q2 HF HX Q3. apply snapshot in Hs.
  apply two_lives in Hs as (B&B'&[_ HL]&Hr&HL3); [|by apply Forall_app; split; [|repeat constructor]|done..].
  set (x := foldl track (At B B None) L1). exists (now x).
  assert (∀ L, at_end B (L1 ++ Call Flush :: Done :: L) = foldl track (At (now x) (now x) None) L) as Ha.
  { intros L. unfold at_end. rewrite at_end_app. done. }
  assert (B' = now x) as ->.
  { destruct Hr as [->|[Ho _]].
    - rewrite Ha. by rewrite track_flushed.
    - rewrite Ha in Ho. by apply track_open in Ho. }
  split; [|done]. split; [done|]. intros M1 a d M2 ->.
  rewrite (HL (L1 ++ Call Flush :: Done :: M1) a d M2) by (by rewrite <-!app_assoc). by rewrite Ha.
Qed.
(** If the life ended in a flush, there is still one disk for all that is read afterwards: that
    flush's, or that of the last one that returned, or of the mount. *)
Theorem one_of_two_flushes E y E0 L X L3 :
  strace E y → E = E0 ++ Mounted :: (L ++ [Call Flush]) ++ X ++ Mounted :: L3 →
  Forall quiet L → down X → Forall quiet L3 →
  ∃ B D, life B L ∧ (D = flushed (at_end B L) ∨ D = now (at_end B L)) ∧ life D L3.
Proof.
  intros Hs -> Q1 HX Q3. apply snapshot in Hs.
  apply two_lives in Hs as (B&B'&[_ HL]&Hr&HL3); [|by apply Forall_app; split; [|repeat constructor]|done..].
  exists B, B'. split_and!; [split; [done|]|unfold returns_to in Hr; rewrite at_end_snoc in Hr; by destruct Hr as [|[_ ?]]; auto|done].
  intros L1 a d L2 ->. by eapply (HL L1 a d (L2 ++ [Call Flush])); rewrite <-app_assoc.
Qed.
(** While fewer than [bound] writes and trims were done since the last flush or mount, a write
    inside the disk is not refused. *)
Theorem epoch_holds E y o : strace (E ++ [Call o; Refused]) y → fits o →
  ∃ t, strace E (Idle, t) ∧ bound ≤ cnt t ∧ y = (Idle, t).
Proof.
  intros Hs Hf. inversion Hs as [HE|E1 e x y' H1 H2 HE]; [by destruct E|].
  replace (E ++ [Call o; Refused]) with ((E ++ [Call o]) ++ [Refused]) in HE by by rewrite <-app_assoc.
  apply app_inj_tail in HE as [-> ->]. inversion H1 as [HE|E2 e x2 y2 H3 H4 HE]; [by destruct E|].
  apply app_inj_tail in HE as [-> ->]. subst. inversion H4; subst. inversion H2; subst.
  eexists. split_and!; try done. destruct o; try done; simpl in *; naive_solver.
Qed.
End ftl.
