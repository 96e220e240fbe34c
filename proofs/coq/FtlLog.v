(** A translation layer whose flash is a log: the model behind the ordering argument of
    [crates/ftl/src/lib.rs], as an implementation for [Ftl].

    Data pages say what they hold of which sectors, and are numbered without gaps within an
    incarnation; the last page of a flush commits. Runs of delta pages say what committed data
    pages changed; a root holds a whole map, collected bit by bit, and from which run on the runs
    change it. Whatever was programmed or erased since the last sync may be there, not be there,
    or be torn, page by page. *)
From stdpp Require Import prelude functions list relations.
From Steadfast Require Import Ftl.

Section log.
Context {sector content page block : Type} `{!EqDecision sector, !EqDecision page, !EqDecision block}.
Context (blk : page → block) (zero : content) (inside : sector → bool) (bound : nat).
Notation disk := (sector → content).
Notation map := (sector → option page).
(** What pages say of a sector: nothing, that it is trimmed, or its content. *)
Notation says := (sector → option (option content)).
(** Changes of a map; the last one of each sector. *)
Notation pairs := (sector → option (option page)).
(** A data page: where it lies, what it says, whether it commits. *)
Notation entry := (page * says * bool)%type.
Notation op := (@op sector content).
Notation sdisk := (@sdisk sector content).

(** ** Flash *)
Inductive cell := Blank | Torn | Data (i n : nat) (w : says) (b : bool).
Record run := Run { upto : nat; inc : nat; chgs : pairs }.
Record root := Root { rmap : map; rpos : nat }.
(** Pages as programmed last, and what else may be there; the newest durable root, and one that
    is not durable yet; runs, the first [dd] of them durable. *)
Record flash := Fl { pg : page → cell; alt : page → cell → Prop; rt : root; rq : option root;
  dl : list run; dd : nat }.

Definition poss (f : flash) (p : page) (x : cell) : Prop := x = pg f p ∨ alt f p x.
Definition still (f : flash) (p : page) : Prop := ∀ x, ¬ alt f p x.
(** A page is programmed only where its block was durably erased. *)
Definition fresh (f : flash) (p : page) : Prop := pg f p = Blank ∧ still f p.
Definition program (p : page) (x : cell) (f : flash) : flash :=
  Fl (<[p := x]> (pg f)) (λ q y, (q = p ∧ (y = pg f p ∨ y = Torn)) ∨ alt f q y) (rt f) (rq f) (dl f) (dd f).
Definition erase (b : block) (f : flash) : flash :=
  Fl (λ q, if decide (blk q = b) then Blank else pg f q)
     (λ q y, (blk q = b ∧ (y = pg f q ∨ y = Torn)) ∨ alt f q y) (rt f) (rq f) (dl f) (dd f).
Definition append (d : run) (f : flash) : flash := Fl (pg f) (alt f) (rt f) (rq f) (dl f ++ [d]) (dd f).
Definition reroot (r : root) (f : flash) : flash := Fl (pg f) (alt f) (rt f) (Some r) (dl f) (dd f).
Definition sync (f : flash) : flash :=
  Fl (pg f) (λ _ _, False) (default (rt f) (rq f)) None (dl f) (length (dl f)).
(** A cut keeps of each page any of its contents, either root, and of the runs the durable ones
    and any number of those behind: they are followed one after the other. *)
Definition cut (f c : flash) : Prop :=
  (∀ p, poss f p (pg c p)) ∧ (∀ p, still c p) ∧ (rt c = rt f ∨ rq f = Some (rt c)) ∧ rq c = None ∧
  ∃ k, dd f ≤ k ≤ length (dl f) ∧ dl c = take k (dl f) ∧ dd c = k.

(** ** Maps and changes *)
Definition chg (e : entry) (m : map) : map := λ a,
  match e.1.2 a with None => m a | Some None => None | Some (Some _) => Some e.1.1 end.
Definition cov (e : entry) (q : pairs) : pairs := λ a,
  match e.1.2 a with None => q a | Some None => Some None | Some (Some _) => Some (Some e.1.1) end.
Definition ovp (q : pairs) (m : map) : map := λ a, match q a with Some x => x | None => m a end.
Definition none {A} : sector → option A := λ _, None.
Definition cover (l : list entry) : pairs := foldl (λ q e, cov e q) none l.
(** What a place holds of a sector. *)
Definition look (g : page → cell) (x : option page) (a : sector) : content :=
  match x with
  | Some p => match g p with Data _ _ w _ => match w a with Some (Some v) => v | _ => zero end | _ => zero end
  | None => zero
  end.
(** Up to which data page the first [k] runs say what changed. *)
Definition upb (l : list run) (k : nat) : nat :=
  match k with 0 => 0 | S k => match l !! k with Some d => upto d | None => 0 end end.

(** ** Memory *)
(** Incarnation; the next number; the map; the same of the last commit; what waits for its page;
    what no run says yet; a checkpoint under way: the map pages written, the run that it begins
    with, the runs that must be durable before its root; writes of this epoch. *)
Record mem := Mem { mi : nat; num : nat; mp : map; fn : nat; fm : map; buf : says; prs : pairs;
  ck : sector → option (option page); ckp : nat; ckn : option nat; wr : nat }.
Definition sealed (e : entry) (m : mem) : mem :=
  Mem (mi m) (S (num m)) (chg e (mp m)) (fn m) (fm m) (buf m) (cov e (prs m)) (ck m) (ckp m) (ckn m) (wr m).
Definition buffer (B : says) (n : nat) (m : mem) : mem :=
  Mem (mi m) (num m) (mp m) (fn m) (fm m) B (prs m) (ck m) (ckp m) (ckn m) n.
Definition told (m : mem) : mem :=
  Mem (mi m) (num m) (mp m) (fn m) (fm m) (buf m) none (ck m) (ckp m) (ckn m) (wr m).
Definition check (q : sector → option (option page)) (k : nat) (n : option nat) (m : mem) : mem :=
  Mem (mi m) (num m) (mp m) (fn m) (fm m) (buf m) (prs m) q k n (wr m).
Definition committed (m : mem) : mem :=
  Mem (mi m) (num m) (mp m) (num m) (mp m) (buf m) (prs m) (ck m) (ckp m) (ckn m) 0.
Definition reads (m : mem) (f : flash) (a : sector) : content :=
  match buf m a with Some (Some v) => v | Some None => zero | None => look (pg f) (mp m a) a end.
Definition read (m : mem) (f : flash) (a : sector) (d : content) : Prop := d = reads m f a.

(** What may happen within any operation. *)
Inductive inner : mem → flash → mem → flash → Prop :=
  (** The buffer gets its page. *)
  | i_seal m f p : fresh f p →
      inner m f (buffer none (wr m) (sealed (p, buf m, false) m)) (program p (Data (mi m) (num m) (buf m) false) f)
  (** Sectors are moved: each must still be where it was read. *)
  | i_move m f p w : fresh f p →
      (∀ a x, w a = Some x → ∃ q, mp m a = Some q ∧ x = Some (look (pg f) (Some q) a)) →
      inner m f (sealed (p, w, false) m) (program p (Data (mi m) (num m) w false) f)
  (** A block is erased: neither map names it, and durable runs say what its own pages said. *)
  | i_erase m f b :
      (∀ a p, mp m a = Some p → blk p ≠ b) →
      (∀ a p, fm m a = Some p → blk p ≠ b) →
      (∀ p n w c, blk p = b → pg f p = Data (mi m) n w c → n < upb (dl f) (dd f)) →
      inner m f m (erase b f)
  (** A run: only when everything is committed. *)
  | i_run m f : num m = fn m →
      inner m f (told m) (append (Run (fn m) (mi m) (prs m)) f)
  (** A checkpoint: it begins, some map pages are written, a run is, and, when that is durable,
      the root. *)
  | i_begin m f : inner m f (check none (length (dl f)) None m) f
  | i_maps m f P : num m = fn m → ckn m = None →
      inner m f (check (λ a, if P a : bool then Some (mp m a) else ck m a) (ckp m) None m) f
  | i_tables m f : num m = fn m → (∀ a, is_Some (ck m a)) →
      inner m f (check (ck m) (ckp m) (Some (S (length (dl f)))) (told m)) (append (Run (fn m) (mi m) (prs m)) f)
  | i_root m f k : ckn m = Some k → k ≤ dd f → rq f = None →
      inner m f (check none (ckp m) None m) (reroot (Root (λ a, default None (ck m a)) (ckp m)) f).

(** ** Recovery *)
(** The last commit and what is before it. *)
Fixpoint keep (l : list entry) : list entry :=
  match l with
  | [] => []
  | e :: l => match keep l with [] => if e.2 then [e] else [] | k => e :: k end
  end.
(** The data pages of an incarnation from a number on, up to the first that is missing. *)
Definition follows (c : flash) (i u : nat) (l : list entry) : Prop :=
  (∀ j p w b, l !! j = Some (p, w, b) → pg c p = Data i (u + j) w b) ∧
  (∀ p w b, pg c p ≠ Data i (u + length l) w b).
(** The root's map, changed by the runs. *)
Definition based (c : flash) : map :=
  foldl (λ m d, ovp (chgs d) m) (rmap (rt c)) (drop (rpos (rt c)) (dl c)).
Inductive recover (c : flash) : mem → Prop :=
  | recovered d l : rpos (rt c) < dd c → dl c !! (dd c - 1) = Some d → follows c (inc d) (upto d) l →
      recover c (Mem (S (inc d)) (upto d + length (keep l)) (ovp (cover (keep l)) (based c))
        (upto d + length (keep l)) (ovp (cover (keep l)) (based c)) none (cover (keep l)) none 0 None 0).

(** ** Operations *)
Inductive pc :=
  | Go (o : op) (m : mem) | Wait (m : mem) | Fin (m : mem) | No (m : mem)
  | Found (m : mem) | Begun (m : mem).
Inductive step : pc * flash → pc * flash → Prop :=
  | p_go o m f m' f' : inner m f m' f' → step (Go o m, f) (Go o m', f')
  | p_fin m f m' f' : inner m f m' f' → step (Fin m, f) (Fin m', f')
  | p_write a d m f : inside a = true → wr m < bound →
      step (Go (Write a d) m, f) (Fin (buffer (<[a := Some (Some d)]> (buf m)) (S (wr m)) m), f)
  | p_no_write a d m f : inside a = false ∨ bound ≤ wr m → step (Go (Write a d) m, f) (No m, f)
  | p_trim P m f : (∀ a, P a = true → inside a = true) → wr m < bound →
      step (Go (Trim P) m, f) (Fin (buffer (λ a, if P a then Some None else buf m a) (S (wr m)) m), f)
  | p_no_trim P a m f : P a = true ∧ inside a = false ∨ bound ≤ wr m → step (Go (Trim P) m, f) (No m, f)
  | p_gc o m f : o = Relocate ∨ o = Erase ∨ o = Checkpoint → step (Go o m, f) (Fin m, f)
  (** A flush: what waits is programmed, committing; one sync. *)
  | p_clean m f : num m = fn m → (∀ a, buf m a = None) → wr m = 0 → step (Go Flush m, f) (Fin m, f)
  | p_commit m f p : fresh f p →
      step (Go Flush m, f)
        (Wait (buffer none (wr m) (sealed (p, buf m, true) m)), program p (Data (mi m) (num m) (buf m) true) f)
  | p_sync m f : step (Wait m, f) (Fin (committed m), sync f)
  (** A mount erases what nothing needs, says in a run what it found and which incarnation
      begins, and syncs. *)
  | p_mount_erase m f b :
      (∀ a p, mp m a = Some p → blk p ≠ b) →
      (∀ p i n w c, blk p = b → pg f p = Data i n w c → mi m = S i → n < upb (dl f) (dd f) ∨ fn m ≤ n) →
      step (Found m, f) (Found m, erase b f)
  | p_begin m f : step (Found m, f) (Begun (told m), append (Run (fn m) (mi m) (prs m)) f)
  | p_begun m f : step (Begun m, f) (Fin m, sync f).
Definition enter (o : op) (m : mem) (p : pc) : Prop := p = Go o m.
Definition menter (c : flash) (p : pc) : Prop := ∃ m, recover c m ∧ p = Found m.
Definition done (p : pc) (m : mem) : Prop := p = Fin m.
Definition refused (p : pc) (m : mem) : Prop := p = No m.
Definition fails (p : pc) : Prop := True.
(** A disk that was just made. *)
Definition new (f : flash) : Prop :=
  (∀ p i n w b, pg f p ≠ Data i n w b) ∧ (∀ p, still f p) ∧
  rt f = Root none 0 ∧ rq f = None ∧ dl f = [Run 0 0 none] ∧ dd f = 1.

(** ** Invariants *)
(** [lg] are all data pages whose numbers count, from the first one on. *)
Definition mapat (lg : list entry) (n : nat) : map := foldl (λ m e, chg e m) none (take n lg).
Definition run_ok (lg : list entry) (u n : nat) (q : pairs) : Prop := ∀ a,
  match q a with
  | Some x => x = mapat lg n a
  | None => ∀ k, u ≤ k ≤ n → mapat lg k a = mapat lg n a
  end.
Definition root_ok (lg : list entry) (f : flash) (r : root) : Prop :=
  rpos r < dd f ∧ ∀ a, ∃ k, upb (dl f) (rpos r) ≤ k ≤ upb (dl f) (dd f) ∧ rmap r a = mapat lg k a.
Definition holds (f : flash) (p : page) (a : sector) : Prop :=
  ∃ i j w b v, pg f p = Data i j w b ∧ w a = Some (Some v).
(** Flash leads to the first [n] pages of [lg], whatever a cut leaves. *)
Record fok (lg : list entry) (i n : nat) (f : flash) : Prop := Fok {
  f_dd : 0 < dd f ≤ length (dl f);
  f_runs j d : dl f !! j = Some d → upb (dl f) j ≤ upto d ≤ n ∧ run_ok lg (upb (dl f) j) (upto d) (chgs d);
  f_rt : root_ok lg f (rt f);
  f_rq r : rq f = Some r → root_ok lg f r;
  f_inc j d : dd f ≤ S j → dl f !! j = Some d → inc d = i;
  f_tail j p w b : upb (dl f) (dd f) ≤ j < n → lg !! j = Some (p, w, b) → pg f p = Data i j w b ∧ still f p;
  f_only p i' j w b : poss f p (Data i' j w b) →
    i' ≤ i ∧ (i' = i → upb (dl f) (dd f) ≤ j → lg !! j = Some (p, w, b));
  f_len : n ≤ length lg;
  f_commit : upb (dl f) (dd f) = n ∨ ∃ p w, lg !! (n - 1) = Some (p, w, true);
  f_named a p : mapat lg n a = Some p → holds f p a ∧ still f p }.
(** Pages that commit more lie after a missing one. *)
Definition gaps (lg : list entry) (i n : nat) (f : flash) : Prop := ∀ j p w, n ≤ j → lg !! j = Some (p, w, true) →
  ∃ j' p' w' b', n ≤ j' ≤ j ∧ lg !! j' = Some (p', w', b') ∧ ∀ w b, ¬ poss f p' (Data i j' w b).
Definition definite (c : flash) : Prop := (∀ p, still c p) ∧ rq c = None ∧ dd c = length (dl c).
Definition CI (c : flash) : Prop := definite c ∧ ∃ lg i n, fok lg i n c ∧ gaps lg i n c.
Definition CR (c : flash) (s : disk) : Prop := ∀ m, recover c m → ∀ a, s a = look (pg c) (mp m a) a.

Record rok (lg : list entry) (m : mem) (f : flash) : Prop := Rok {
  r_f : fok lg (mi m) (fn m) f;
  r_num : num m = length lg;
  r_mp a : mp m a = mapat lg (length lg) a;
  r_fm a : fm m a = mapat lg (fn m) a;
  r_tail j p w b : upb (dl f) (dd f) ≤ j → lg !! j = Some (p, w, b) → pg f p = Data (mi m) j w b;
  r_named a p : mapat lg (length lg) a = Some p → holds f p a;
  r_prs : run_ok lg (upb (dl f) (length (dl f))) (length lg) (prs m);
  r_ckp : ckp m ≤ length (dl f);
  r_ck a x : ck m a = Some x → ∃ k, upb (dl f) (ckp m) ≤ k ∧
    k ≤ match ckn m with Some n => upb (dl f) n | None => fn m end ∧ x = mapat lg k a;
  r_ckn n : ckn m = Some n → ckp m < n ≤ length (dl f) ∧ ∀ a, is_Some (ck m a) }.
(** Nothing is committed that no flush committed. *)
Definition uncommitted (lg : list entry) (n : nat) : Prop := ∀ j p w b, n ≤ j → lg !! j = Some (p, w, b) → b = false.
Definition RI (m : mem) (f : flash) : Prop := ∃ lg, rok lg m f ∧ uncommitted lg (fn m).
Definition AR (m : mem) (f : flash) (t : sdisk) : Prop :=
  (∀ a, vol t a = reads m f a) ∧ (∀ a, stb t a = look (pg f) (fm m a) a) ∧ wr m ≤ cnt t.
End log.
