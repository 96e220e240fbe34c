(** The delta log page by page: why [FtlLog.cut] may say that a cut keeps the durable runs and
    any number of those behind. A page names the places where the next one may be, which are
    durably erased before; a run takes any number of pages and counts with its last one; after a
    cut the log goes on in a place that was named, erased anew, whatever else the cut left. *)
From stdpp Require Import prelude functions list relations.
From Steadfast Require Import Ftl FtlLog FtlRecover.

Section runs.
Context {place payload : Type} `{!EqDecision place}.
Record dpage := Dp { no : nat; what : payload; ends : bool; nexts : list place }.
Inductive dcell := Empty | Junk | Holds (x : dpage).
Record dflash := Df { here : place → dcell; other : place → dcell → Prop }.
Definition may (f : dflash) (p : place) (y : dcell) : Prop := y = here f p ∨ other f p y.
Definition calm (f : dflash) (p : place) : Prop := ∀ y, ¬ other f p y.
Definition dwrite (p : place) (y : dcell) (f : dflash) : dflash :=
  Df (<[p := y]> (here f)) (λ q z, (q = p ∧ (z = here f p ∨ z = Junk)) ∨ other f q z).
Definition dcut (f c : dflash) : Prop := (∀ p, may f p (here c p)) ∧ ∀ p, calm c p.

(** All pages, page [j] at [j]; the first that the durable root needs; how many are durable; the
    places where the very first may be. *)
Record dlog := Dl { df : dflash; ch : list (place * dpage); base : nat; dur : nat; starts : list place }.
Definition cands (s : dlog) (j : nat) : list place :=
  match j with 0 => starts s | S j => match ch s !! j with Some e => nexts e.2 | None => [] end end.
(** Recovery, from a page on: the pages that are where they may be. *)
Inductive walk (c : dflash) : list place → nat → list (place * dpage) → Prop :=
  | w_end cs n : (∀ q x, q ∈ cs → here c q = Holds x → no x ≠ n) → walk c cs n []
  | w_next cs n q x l : q ∈ cs → here c q = Holds x → no x = n → walk c (nexts x) (S n) l → walk c cs n ((q, x) :: l).
Inductive dstep : dlog → dlog → Prop :=
  | d_program s p w e nx :
      p ∈ cands s (length (ch s)) → here (df s) p = Empty → calm (df s) p →
      (∀ q, q ∈ nx → q ≠ p ∧ here (df s) q = Empty ∧ calm (df s) q) →
      dstep s (Dl (dwrite p (Holds (Dp (length (ch s)) w e nx)) (df s)) (ch s ++ [(p, Dp (length (ch s)) w e nx)])
        (base s) (dur s) (starts s))
  (** Any place may be erased that holds no page after the root. *)
  | d_erase s q : (∀ j x, base s ≤ j → ch s !! j ≠ Some (q, x)) →
      dstep s (Dl (dwrite q Empty (df s)) (ch s) (base s) (dur s) (starts s))
  | d_sync s : dstep s (Dl (Df (here (df s)) (λ _ _, False)) (ch s) (base s) (length (ch s)) (starts s))
  (** A newer root is durable. *)
  | d_root s b : base s ≤ b ≤ dur s → dstep s (Dl (df s) (ch s) b (dur s) (starts s))
  (** A cut, and a mount that began with the durable root or one that was written by then. *)
  | d_cut s c b l : base s ≤ b ≤ dur s → dcut (df s) c → walk c (cands s b) b l →
      dstep s (Dl c (take b (ch s) ++ l) b (b + length l) (starts s)).
Definition dinit (s : dlog) : Prop :=
  ch s = [] ∧ base s = 0 ∧ dur s = 0 ∧ ∀ q, q ∈ starts s → here (df s) q = Empty ∧ calm (df s) q.

Record dok (s : dlog) : Prop := Dok {
  k_dur : base s ≤ dur s ≤ length (ch s);
  k_page j p x : base s ≤ j → ch s !! j = Some (p, x) → no x = j ∧ here (df s) p = Holds x ∧ p ∈ cands s j;
  k_dur_page j p x : base s ≤ j < dur s → ch s !! j = Some (p, x) → calm (df s) p;
  k_only j p x : base s ≤ j ≤ length (ch s) → p ∈ cands s j → may (df s) p (Holds x) → no x = j → ch s !! j = Some (p, x) }.

Lemma cands_app s l j f b d : j ≤ length (ch s) → cands (Dl f (ch s ++ l) b d (starts s)) j = cands s j.
Proof. intros Hj. destruct j as [|j]; [done|]. simpl. by rewrite lookup_app_l. Qed.
Lemma may_write f p y q z : may (dwrite p y f) q z → (q = p ∧ z = y) ∨ (q ≠ p ∧ may f q z) ∨ (q = p ∧ z = here f p) ∨ z = Junk ∨ other f q z.
Proof.
  intros [Hz|[[-> [->| ->]]|Hz]]; simpl in *; auto 6.
  destruct (decide (q = p)) as [->|]; [rewrite fn_lookup_insert in Hz; auto|].
  rewrite fn_lookup_insert_ne in Hz by done. right. left. split; [done|by left].
Qed.
(** What a walk finds is the log, at least as far as it is durable. *)
Lemma walk_log s c cs b l : dok s → dcut (df s) c → walk c cs b l → cs = cands s b → base s ≤ b ≤ length (ch s) →
  (∀ i e, l !! i = Some e → ch s !! (b + i) = Some e) ∧ (b ≤ dur s → dur s ≤ b + length l).
Proof.
  intros HK [Hc _]. induction 1 as [cs b Hn|cs b q x l Hq Hx Hno _ IH]; intros -> Hb.
  - split; [done|]. intros Hd. simpl. destruct (decide (b < dur s)) as [Hlt|]; [|lia].
    destruct (lookup_lt_is_Some_2 (ch s) b) as [[p x] He]; [destruct (k_dur _ HK); lia|].
    destruct (k_page _ HK b p x) as (Hno&Hh&Hp); [lia|done|]. edestruct (Hn p x); [done| |done].
    destruct (Hc p) as [->|Ho]; [done|]. by eapply (k_dur_page _ HK b p x) in Ho; [|lia|].
  - assert (ch s !! b = Some (q, x)) as He.
    { apply (k_only _ HK); [lia|done|rewrite <-Hx; apply Hc|done]. }
    destruct IH as [IH1 IH2]; [simpl; by rewrite He|apply lookup_lt_Some in He; lia|]. split.
    + intros [|i] e Hi; simpl in Hi; [injection Hi as <-; by rewrite Nat.add_0_r|].
      specialize (IH1 _ _ Hi). by replace (b + S i) with (S b + i) by lia.
    + simpl. intros Hd. destruct (decide (b = dur s)); [lia|]. specialize (IH2 ltac:(lia)). lia.
Qed.
Lemma walk_here c cs b l i p x : walk c cs b l → l !! i = Some (p, x) → here c p = Holds x.
Proof.
  intros Hw. revert i. induction Hw as [|cs b q y l Hq Hx Hno _ IH]; intros [|i] Hi; try done; simpl in Hi; [|by eapply IH].
  by injection Hi as <- <-.
Qed.
Lemma walk_stops s c cs b l q x : walk c cs b l → cs = cands s b → (∀ i e, l !! i = Some e → ch s !! (b + i) = Some e) →
  q ∈ cands s (b + length l) → here c q = Holds x → no x ≠ b + length l.
Proof.
  induction 1 as [cs b Hn|cs b p y l Hp Hy Hno _ IH]; intros -> Hl Hq Hx; simpl in *.
  - rewrite Nat.add_0_r in *. by eapply Hn.
  - replace (b + S (length l)) with (S b + length l) in * by lia. apply IH; [|intros i e Hi|done..].
    + specialize (Hl 0 (p, y) eq_refl). rewrite Nat.add_0_r in Hl. simpl. by rewrite Hl.
    + specialize (Hl (S i) e Hi). rewrite <-Hl. f_equal. lia.
Qed.
Lemma walk_take s c b l : dok s → dcut (df s) c → base s ≤ b ≤ dur s → walk c (cands s b) b l →
  take b (ch s) ++ l = take (b + length l) (ch s) ∧ dur s ≤ b + length l ≤ length (ch s).
Proof.
  intros HK Hc Hb Hw. pose proof (k_dur _ HK) as Hd.
  destruct (walk_log s c (cands s b) b l) as [Hl Hlen]; [done..|lia|].
  assert (b + length l ≤ length (ch s)) as Hle.
  { destruct l as [|e l] using rev_ind; [simpl; lia|]. rewrite app_length. simpl.
    specialize (Hl (length l) e ltac:(by apply list_lookup_middle)). apply lookup_lt_Some in Hl. lia. }
  split; [|split; [apply Hlen; lia|done]]. apply list_eq. intros i. destruct (decide (i < b)).
  - rewrite lookup_app_l, !lookup_take by (rewrite ?take_length; lia). done.
  - rewrite lookup_app_r, take_length, Nat.min_l by (rewrite ?take_length; lia).
    destruct (l !! (i - b)) as [e|] eqn:E.
    + rewrite lookup_take by (apply lookup_lt_Some in E; lia). specialize (Hl _ _ E). by replace (b + (i - b)) with i in Hl by lia.
    + apply lookup_ge_None in E. by rewrite lookup_take_ge by lia.
Qed.
Lemma dok_step s s' : dok s → dstep s s' → dok s'.
Proof.
  intros HK Hs. pose proof HK as [Hd Hp Hs' Ho].
  destruct Hs as [s p w e nx Hpc Hh Hc Hnx|s q Hq|s|s b Hb|s c b l Hb Hc Hw].
  - set (n := length (ch s)) in *. constructor; simpl.
    + rewrite app_length. lia.
    + intros j q x Hj [He|[Hl He]]%lookup_app_Some.
      * destruct (Hp j q x Hj He) as (?&Hx&?). rewrite cands_app by (apply lookup_lt_Some in He; lia).
        rewrite fn_lookup_insert_ne by congruence. done.
      * apply list_lookup_singleton_Some in He as [? [= <- <-]]. assert (j = n) as -> by (unfold n; lia).
        rewrite cands_app by done. by rewrite fn_lookup_insert.
    + intros j q x Hj He. rewrite lookup_app_l in He by lia. destruct (Hp j q x) as (_&Hx&_); [lia|done|].
      intros z [[-> _]|Hz]; [congruence|]. by eapply (Hs' j q x).
    + rewrite app_length. simpl. intros j q x Hj Hqc Hm Hno. destruct (decide (j = S n)) as [->|].
      * exfalso. simpl in Hqc. rewrite list_lookup_middle in Hqc by done. destruct (Hnx q Hqc) as (Hqp&Hqe&Hqs).
        apply may_write in Hm as [[? _]|[[_ [Hz|Hz]]|[[? _]|[?|Hz]]]]; try done; [congruence|by eapply Hqs|by eapply Hqs].
      * rewrite cands_app in Hqc by (unfold n in *; lia).
        apply may_write in Hm as [[-> [= ->]]|[[_ Hz]|[[_ ?]|[?|Hz]]]]; try congruence.
        -- simpl in Hno. subst j. by apply list_lookup_middle.
        -- apply lookup_app_l_Some. apply Ho; [lia|done..].
        -- apply lookup_app_l_Some. apply Ho; [lia|done|by right|done].
  - constructor; simpl; [done|..].
    + intros j p x Hj He. destruct (Hp j p x Hj He) as (?&?&?). rewrite fn_lookup_insert_ne; [done|].
      intros ->. by eapply Hq.
    + intros j p x Hj He z [[-> _]|Hz]; [eapply (Hq j); [lia|done]|]. by eapply (Hs' j p x).
    + intros j p x Hj Hpc Hm Hno. apply may_write in Hm as [[_ ?]|[[_ Hz]|[[-> Hz]|[?|Hz]]]]; try done.
      * by apply Ho.
      * apply Ho; try done. by left.
      * apply Ho; try done. by right.
  - constructor; simpl; [lia|done|intros; intros ?; tauto|].
    intros j p x Hj Hpc [Hm|[]] Hno. apply Ho; try done. by left.
  - constructor; simpl; [lia|..].
    + intros j p x Hj. apply Hp. lia.
    + intros j p x Hj. apply Hs'. lia.
    + intros j p x Hj. apply Ho. lia.
  - destruct (walk_take s c b l HK Hc Hb Hw) as [Ht Hk]. rewrite Ht.
    destruct (walk_log s c (cands s b) b l) as [Hl _]; [done..|lia|].
    assert (∀ j, j ≤ b + length l → cands (Dl c (take (b + length l) (ch s)) b (b + length l) (starts s)) j = cands s j) as Hca.
    { intros [|j] Hj; [done|]. simpl. by rewrite lookup_take by lia. }
    assert (length (take (b + length l) (ch s)) = b + length l) as Hlen by (rewrite take_length; lia).
    constructor; simpl; rewrite ?Hlen.
    + lia.
    + intros j p x Hj He. assert (j < b + length l) by (apply lookup_lt_Some in He; lia).
      rewrite lookup_take in He by done. rewrite Hca by lia. destruct (Hp j p x) as (?&?&?); [lia|done|]. split_and!; try done.
      destruct (lookup_lt_is_Some_2 l (j - b)) as [e Hj2]; [lia|]. pose proof (Hl _ _ Hj2) as Hj3.
      replace (b + (j - b)) with j in Hj3 by lia. rewrite He in Hj3. injection Hj3 as <-. by eapply walk_here.
    + intros j p x _ _. apply Hc.
    + intros j p x Hj. rewrite Hca by lia. intros Hpc [Hm|Hm] Hno; [|by eapply Hc in Hm].
      destruct (decide (j = b + length l)) as [->|].
      * exfalso. by eapply (walk_stops s c (cands s b) b l p x).
      * rewrite lookup_take by lia. apply Ho; [lia|done| |done]. rewrite Hm. apply Hc.
Qed.
Lemma dok_init s : dinit s → dok s.
Proof.
  intros (Hc&Hb&Hd&Hs). constructor; rewrite ?Hc, ?Hb, ?Hd; simpl; try done.
  intros j p x Hj Hp Hm Hno. assert (j = 0) as -> by lia. simpl in Hp. destruct (Hs p Hp) as [He Hn].
  destruct Hm as [Hm|Hm]; [congruence|by eapply Hn in Hm].
Qed.
Lemma dok_steps s s' : dok s → rtc dstep s s' → dok s'.
Proof. intros HK Hs. induction Hs; [done|]. eauto using dok_step. Qed.

(** The runs that pages make: each ends with its last page; pages of one that was cut short go
    to the next one. *)
Definition addpage (r : list (list payload) * list payload) (x : dpage) : list (list payload) * list payload :=
  if ends x then (r.1 ++ [r.2 ++ [what x]], []) else (r.1, r.2 ++ [what x]).
Definition runs_of (l : list (place * dpage)) : list (list payload) := (foldl addpage ([], []) (l.*2)).1.
Lemma addpages_prefix r l : r.1 `prefix_of` (foldl addpage r l).1.
Proof.
  revert r. induction l as [|x l IH]; intros r; [done|]. simpl. etrans; [|apply IH].
  unfold addpage. destruct (ends x); simpl; [by apply prefix_app_r|done].
Qed.
Lemma runs_prefix l k : runs_of (take k l) `prefix_of` runs_of l.
Proof.
  rewrite <-(take_drop k l) at 2. unfold runs_of. rewrite fmap_app, foldl_app. apply addpages_prefix.
Qed.
(** Whatever a cut leaves, from any root that may be there: of the runs there are the first ones,
    the durable ones among them. It is what [FtlLog.cut] says. *)
Theorem cut_keeps_runs s0 s c b l : dinit s0 → rtc dstep s0 s → base s ≤ b ≤ dur s → dcut (df s) c →
  walk c (cands s b) b l →
  ∃ k, length (runs_of (take (dur s) (ch s))) ≤ k ≤ length (runs_of (ch s)) ∧
    runs_of (take b (ch s) ++ l) = take k (runs_of (ch s)).
Proof.
  intros Hi%dok_init Hs Hb Hc Hw. pose proof (dok_steps _ _ Hi Hs) as HK.
  destruct (walk_take s c b l HK Hc Hb Hw) as [-> Hk]. set (k := b + length l) in *.
  exists (length (runs_of (take k (ch s)))). split; [split|].
  - apply prefix_length. rewrite <-(Nat.min_l (dur s) k) at 1 by lia. rewrite <-take_take. apply runs_prefix.
  - apply prefix_length, runs_prefix.
  - destruct (runs_prefix (ch s) k) as [r ->]. by rewrite take_app.
Qed.
(** And recovery finds an end. *)
Theorem walk_ends s0 s c b : dinit s0 → rtc dstep s0 s → base s ≤ b ≤ length (ch s) → dcut (df s) c →
  ∃ l, walk c (cands s b) b l.
Proof.
  intros Hi%dok_init Hs Hb Hc. pose proof (dok_steps _ _ Hi Hs) as HK.
  remember (length (ch s) - b) as k eqn:Ek. revert b Hb Ek. induction k as [|k IH]; intros b Hb Ek.
  - exists []. constructor. intros q x Hq Hx Hno.
    assert (ch s !! b = Some (q, x)) as He%lookup_lt_Some; [|lia].
    apply (k_only _ HK); [done|done|rewrite <-Hx; apply Hc|done].
  - destruct (lookup_lt_is_Some_2 (ch s) b) as [[p y] He]; [lia|].
    destruct (k_page _ HK b p y) as (Hno&_&Hp); [lia|done|].
    destruct (here c p) as [| |x] eqn:E.
    3: destruct (decide (no x = b)) as [Hx|Hx].
    3: { assert (ch s !! b = Some (p, x)) as He2 by (apply (k_only _ HK); [lia|done|rewrite <-E; apply Hc|done]).
         destruct (IH (S b)) as [l Hl]; [lia|lia|]. simpl in Hl. rewrite He2 in Hl.
         exists ((p, x) :: l). by apply w_next. }
    all: exists []; constructor; intros q z Hq Hz Hnz;
      assert (ch s !! b = Some (q, z)) as He2 by (apply (k_only _ HK); [lia|done|rewrite <-Hz; apply Hc|done]);
      rewrite He in He2; injection He2 as <- <-; congruence.
Qed.
End runs.

(** Pages of a run that was cut short, before those of the next: they say what was committed, and
    the next run says all of that again. *)
Theorem leftover_harmless {sector content page : Type}
    (lg : list (page * (sector → option (option content)) * bool)) u n n' (q q' : sector → option (option page)) :
  u ≤ n' ≤ n → run_ok lg u n q →
  (∀ a x, q' a = Some x → ∃ k, u ≤ k ≤ n' ∧ x = mapat lg k a) →
  run_ok lg u n (λ a, match q a with Some x => Some x | None => q' a end).
Proof.
  intros Hn Hr Hq a. specialize (Hr a). destruct (q a) as [x|]; [done|].
  destruct (q' a) as [x|] eqn:E; [|done]. destruct (Hq a x E) as (k&?&->). apply Hr. lia.
Qed.
