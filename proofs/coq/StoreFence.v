(** A volume on an object store: one writer at a time, fenced by terms.

    Slots are created, never overwritten; [head] is swapped from one version to the next; what else
    there is, is deleted. The network is arbitrary: a request that was sent may take effect at any
    time, any number of times, or never, and nothing bounds when its machine hears of it. Machines
    are what they know: heads that were in force ([past]), slots that held something ([was]). A
    machine that stops and goes on later, or never, needs no step. *)
From stdpp Require Import prelude list.

Section fence.
(** Contents of epochs; names of objects other than slots. *)
Context {V N : Type}.

(** What a slot object holds. *)
Inductive body := Ep (v : V) | Seal.
Inductive name := Sl (t s : nat) | Ob (n : N).

(** [head]. Slots count from 0. [ch] has the terms of the closed slots, those before the checkpoint
    included, which the code forgets; the open term [cur] goes on after them. [rt] is what the
    checkpoint contains: the epochs of all slots before [base]. [used] are all names of objects that
    a checkpoint ever had: no name is used again. *)
Record head := Hd {
  ver : nat; top : nat; who : nat;
  base : nat; rt : list V; ch : list nat; cur : nat;
  refs : list N; pins : list name; used : list N }.
Definition term_at (h : head) (s : nat) : nat := default (cur h) (ch h !! s).
Definition named (h : head) (n : N) : Prop := n ∈ refs h ∨ Ob n ∈ pins h.

(** The versions that may follow a version. *)
Definition claimed (i : nat) (h : head) : head :=
  Hd (S (ver h)) (S (top h)) i (base h) (rt h) (ch h) (cur h) (refs h) (pins h) (used h).
Definition opened_at (e : nat) (h : head) : head :=
  Hd (S (ver h)) (top h) (who h) (base h) (rt h) (ch h ++ replicate (e - length (ch h)) (cur h)) (top h)
    (refs h) (pins h) (used h).
Definition published (b : nat) (r : list V) (R : list N) (h : head) : head :=
  Hd (S (ver h)) (top h) (who h) b r (ch h) (cur h) R (pins h) (used h ++ R).
Definition pinned (P : list name) (h : head) : head :=
  Hd (S (ver h)) (top h) (who h) (base h) (rt h) (ch h) (cur h) (refs h) P (used h).

Inductive req :=
  | RPut (t s : nat) (b : body)
  | RObj (n : N)
  | RSwap (from to : head)
  | RDel (x : name).

(** The store, what was sent, and what was ever so. [mine]: the contents that a machine chose for a
    slot of its term, once. *)
Record state := St {
  hd : head; slots : nat → nat → option body; objs : N → Prop;
  sent : req → Prop; past : head → Prop; was : nat → nat → body → Prop; landed : N → Prop;
  mine : nat → nat → nat → V → Prop;
  acked : nat → nat → V → Prop; opened : nat → list V → Prop }.

(** A claimant has read the history up to a seal of the open term: [L]. *)
Definition scan (x : state) (h : head) (e : nat) (L : list V) : Prop :=
  base h ≤ e ∧ length (ch h) ≤ e ∧ length L = e ∧ rt h `prefix_of` L ∧
  (∀ s v, base h ≤ s → L !! s = Some v → was x (term_at h s) s (Ep v)) ∧
  was x (cur h) e Seal.

(** What machines send, by what they know. *)
Inductive ok (x : state) : req → Prop :=
  | ok_seal h s : past x h → cur h < top h → ok x (RPut (cur h) s Seal)
  | ok_epoch i h s v : past x h → who h = i → top h = cur h → length (ch h) ≤ s →
      mine x i (cur h) s v → ok x (RPut (cur h) s (Ep v))
  | ok_obj n : ok x (RObj n)
  | ok_claim i h : past x h → ok x (RSwap h (claimed i h))
  | ok_open i h g e L : past x h → who h = i → cur h < top h →
      past x g → top g = top h → who g = i → cur g < top g → scan x g e L →
      ok x (RSwap h (opened_at e h))
  | ok_publish i h b r R : past x h → who h = i → top h = cur h → base h ≤ b →
      length r = b → rt h `prefix_of` r →
      (∀ s v, base h ≤ s → r !! s = Some v → was x (term_at h s) s (Ep v)) →
      (∀ n, n ∈ R → n ∈ refs h ∨ (landed x n ∧ n ∉ used h)) →
      ok x (RSwap h (published b r R h))
  | ok_edit h P : past x h →
      (∀ y, y ∈ P → y ∈ pins h ∨ (∃ n, y = Ob n ∧ n ∈ refs h) ∨
        (∃ t s, y = Sl t s ∧ base h ≤ s ∧ ch h !! s = Some t)) →
      ok x (RSwap h (pinned P h))
  | ok_del_slot h t s : past x h → s < base h → term_at h s = t → Sl t s ∉ pins h → ok x (RDel (Sl t s))
  | ok_del_obj h n : past x h → n ∈ used h → ¬ named h n → ok x (RDel (Ob n)).

Definition upd (f : nat → nat → option body) (t s : nat) (o : option body) : nat → nat → option body :=
  λ t' s', if decide (t' = t ∧ s' = s) then o else f t' s'.

Inductive step (x : state) : state → Prop :=
  (** A machine chooses what a slot shall hold; sends a request. *)
  | s_mine i t s v : (∀ w, ¬ mine x i t s w) →
      step x (St (hd x) (slots x) (objs x) (sent x) (past x) (was x) (landed x)
        (λ i' t' s' v', mine x i' t' s' v' ∨ (i' = i ∧ t' = t ∧ s' = s ∧ v' = v)) (acked x) (opened x))
  | s_send r : ok x r →
      step x (St (hd x) (slots x) (objs x) (λ r', sent x r' ∨ r' = r) (past x) (was x) (landed x)
        (mine x) (acked x) (opened x))
  (** A request takes effect. *)
  | s_put t s b : sent x (RPut t s b) → slots x t s = None →
      step x (St (hd x) (upd (slots x) t s (Some b)) (objs x) (sent x) (past x)
        (λ t' s' b', was x t' s' b' ∨ (t' = t ∧ s' = s ∧ b' = b)) (landed x) (mine x) (acked x) (opened x))
  | s_obj n : sent x (RObj n) →
      step x (St (hd x) (slots x) (λ m, objs x m ∨ m = n) (sent x) (past x) (was x)
        (λ m, landed x m ∨ m = n) (mine x) (acked x) (opened x))
  | s_swap from to : sent x (RSwap from to) → hd x = from →
      step x (St to (slots x) (objs x) (sent x) (λ h, past x h ∨ h = to) (was x) (landed x)
        (mine x) (acked x) (opened x))
  | s_del_slot t s : sent x (RDel (Sl t s)) →
      step x (St (hd x) (upd (slots x) t s None) (objs x) (sent x) (past x) (was x) (landed x)
        (mine x) (acked x) (opened x))
  | s_del_obj n : sent x (RDel (Ob n)) →
      step x (St (hd x) (slots x) (λ m, objs x m ∧ m ≠ n) (sent x) (past x) (was x) (landed x)
        (mine x) (acked x) (opened x))
  (** A writer acknowledges a slot: all slots of its term up to this one hold what it chose. *)
  | s_ack i h s v : past x h → who h = i → top h = cur h → length (ch h) ≤ s → mine x i (cur h) s v →
      (∀ k, length (ch h) ≤ k ≤ s → ∃ w, mine x i (cur h) k w ∧ was x (cur h) k (Ep w)) →
      step x (St (hd x) (slots x) (objs x) (sent x) (past x) (was x) (landed x) (mine x)
        (λ t' s' v', acked x t' s' v' ∨ (t' = cur h ∧ s' = s ∧ v' = v)) (opened x))
  (** A claimant knows that its term is open, with what it read. *)
  | s_opened i h g L : past x h → who h = i → top h = cur h →
      past x g → top g = top h → who g = i → cur g < top g → scan x g (length (ch h)) L →
      step x (St (hd x) (slots x) (objs x) (sent x) (past x) (was x) (landed x) (mine x) (acked x)
        (λ t' L', opened x t' L' ∨ (t' = cur h ∧ L' = L))).

(** A new volume: the first term is open. *)
Definition fresh : head := Hd 0 1 0 0 [] [] 1 [] [] [].
Definition init : state :=
  St fresh (λ _ _, None) (λ _, False) (λ _, False) (λ h, h = fresh) (λ _ _ _, False) (λ _, False)
    (λ _ _ _ _, False) (λ _ _ _, False) (λ _ _, False).
Definition reachable (x : state) : Prop := rtc step init x.

(** ** Versions of [head] *)
(** What a later version keeps of an earlier one. *)
Record ext (h h' : head) : Prop := Ext {
  x_ver : ver h ≤ ver h';
  x_same : ver h = ver h' → h = h';
  x_top : top h ≤ top h';
  x_who : top h = top h' → who h = who h';
  x_base : base h ≤ base h';
  x_rt : rt h `prefix_of` rt h';
  x_ch : ch h `prefix_of` ch h';
  x_cur : cur h ≤ cur h';
  x_term : ∀ s, s < base h ∨ s < length (ch h) → term_at h s = term_at h' s;
  (** Only an opening closes slots. *)
  x_closed : cur h = cur h' → ch h = ch h';
  (** After a claim the checkpoint stands still until the opening. *)
  x_fenced : cur h = cur h' → cur h < top h → base h = base h' ∧ rt h = rt h';
  (** The machine that opens next has claimed last, and closes slots of the term that was open. *)
  x_next : cur h < cur h' → top h ≤ cur h';
  x_direct : cur h < top h → cur h' = top h →
    ch h' = ch h ++ replicate (length (ch h') - length (ch h)) (cur h);
  (** What is no longer named is never named again. *)
  x_used : ∀ n, n ∈ used h → n ∈ used h';
  x_forgot : ∀ n, n ∈ used h → named h' n → named h n;
  x_unpinned : ∀ t s, s < base h → Sl t s ∉ pins h → Sl t s ∉ pins h' }.

Lemma ext_refl h : ext h h.
Proof.
  constructor; auto; try done; intros; lia.
Qed.
Lemma ext_trans h h' h'' : ext h h' → ext h' h'' → ext h h''.
Proof.
  intros A B. destruct A, B. constructor; try lia.
  - intros E. assert (ver h = ver h') as E1 by lia. rewrite (x_same0 E1) in *. apply x_same1. lia.
  - by etrans.
  - by etrans.
  - intros s Hs. rewrite x_term0 by done. apply x_term1.
    destruct Hs as [Hs|Hs]; [left; lia|right]. apply prefix_length in x_ch0. lia.
  - intros E. rewrite x_closed0 by lia. apply x_closed1. lia.
  - intros E F. destruct x_fenced0 as [-> ->]; [lia..|]. apply x_fenced1; lia.
  - intros E F. destruct (decide (cur h = cur h')) as [C|C].
    + assert (top h' ≤ cur h'') by (apply x_next1; lia).
      rewrite (x_closed0 C), C. apply x_direct1; lia.
    + assert (top h ≤ cur h') by (apply x_next0; lia).
      rewrite <-(x_closed1 ltac:(lia)). apply x_direct0; lia.
  - auto.
  - intros n Hn Hn'. apply x_forgot0; [done|]. apply x_forgot1; auto.
  - intros t s Hs Hp. apply x_unpinned1; [lia|]. by apply x_unpinned0.
Qed.

(** ** The invariant *)
Definition uses (h : head) : Prop :=
  (∀ n, n ∈ refs h → n ∈ used h) ∧ (∀ n, Ob n ∈ pins h → n ∈ used h).
Definition holds (x : state) (t s : nat) : Prop := ∃ v, slots x t s = Some (Ep v).

(** The term of [h] is closed in [h']: it ends before a seal that stays. *)
Definition ends (x : state) (h h' : head) : Prop := ∃ e,
  length (ch h) ≤ e ≤ length (ch h') ∧
  (∀ s, length (ch h) ≤ s < e → ch h' !! s = Some (cur h)) ∧
  (∀ s, ch h' !! s = Some (cur h) → s < e) ∧
  slots x (cur h) e = Some Seal ∧ (∀ v, ¬ was x (cur h) e (Ep v)).

Record inv (x : state) : Prop := Inv {
  i_hd : past x (hd x);
  i_ext h h' : past x h → past x h' → ver h ≤ ver h' → ext h h';
  i_last h : past x h → ver h ≤ ver (hd x);
  i_cur h : past x h → cur h ≤ top h;
  i_terms h s t : past x h → ch h !! s = Some t → t < cur h;
  i_uses h : past x h → uses h;
  i_sent r : sent x r → ok x r;
  i_was t s b : was x t s b → sent x (RPut t s b);
  i_mine i t s v w : mine x i t s v → mine x i t s w → v = w;
  i_kept t s b : base (hd x) ≤ s → was x t s b → slots x t s = Some b;
  i_rt h : past x h → length (rt h) = base h;
  i_root h s v : past x h → rt h !! s = Some v → was x (term_at h s) s (Ep v);
  i_chain h s t : past x h → ch h !! s = Some t → ∃ v, was x t s (Ep v);
  i_ends h h' : past x h → past x h' → cur h < cur h' → ends x h h';
  i_acked t s v : acked x t s v → ∃ h, past x h ∧ cur h = t ∧ length (ch h) ≤ s ∧ was x t s (Ep v) ∧
    (∀ k, length (ch h) ≤ k ≤ s → ∃ w, was x t k (Ep w));
  i_opened t L : opened x t L → ∃ h g, past x h ∧ cur h = t ∧ past x g ∧ top g = t ∧ cur g < t ∧ scan x g (length (ch h)) L;
  i_new n : landed x n → n ∉ used (hd x) → objs x n;
  i_named n : named (hd x) n → objs x n;
  i_pinned t s : Sl t s ∈ pins (hd x) → holds x t s }.

(** What is known stays known. *)
Lemma scan_mono x y h e L : (∀ t s b, was x t s b → was y t s b) → scan x h e L → scan y h e L.
Proof. intros Hw (?&?&?&?&?&?). split_and!; eauto. Qed.
Lemma ok_mono x y r :
  (∀ h, past x h → past y h) → (∀ t s b, was x t s b → was y t s b) →
  (∀ n, landed x n → landed y n) → (∀ i t s v, mine x i t s v → mine y i t s v) → ok x r → ok y r.
Proof.
  intros Hp Hw Hl Hm Ho.
  destruct Ho as [| | | |i h g e L ??????? Hs|i h b r R ??????? HR| | |].
  - apply ok_seal; auto.
  - eapply ok_epoch; eauto.
  - constructor.
  - constructor; auto.
  - apply (ok_open y i h g e L); auto. by eapply scan_mono.
  - apply (ok_publish y i h b r R); auto. intros n Hn. destruct (HR n Hn) as [?|[??]]; auto.
  - apply ok_edit; auto.
  - eapply ok_del_slot; eauto.
  - eapply ok_del_obj; eauto.
Qed.

(** What a justified request says. *)
Lemma sent_epoch x t s v : ok x (RPut t s (Ep v)) →
  ∃ h, past x h ∧ top h = t ∧ cur h = t ∧ length (ch h) ≤ s ∧ mine x (who h) t s v.
Proof. inversion 1; subst. eexists. split_and!; eauto. Qed.
Lemma sent_del_slot x t s : ok x (RDel (Sl t s)) →
  ∃ h, past x h ∧ s < base h ∧ term_at h s = t ∧ Sl t s ∉ pins h.
Proof. inversion 1; subst. eauto. Qed.
Lemma sent_del_obj x n : ok x (RDel (Ob n)) → ∃ h, past x h ∧ n ∈ used h ∧ ¬ named h n.
Proof. inversion 1; subst. eauto. Qed.

Lemma was_one x t s v w : inv x → was x t s (Ep v) → was x t s (Ep w) → v = w.
Proof.
  intros I Hv Hw. apply (i_was x I), (i_sent x I) in Hv, Hw.
  apply sent_epoch in Hv as (h&Hh&Ht&Hc&_&Hm), Hw as (g&Hg&Hu&Hd&_&Hn).
  assert (who h = who g) as E.
  { destruct (decide (ver h ≤ ver g)).
    - apply (x_who _ _ (i_ext x I h g Hh Hg ltac:(lia))). lia.
    - symmetry. apply (x_who _ _ (i_ext x I g h Hg Hh ltac:(lia))). lia. }
  rewrite E in Hm. by eapply (i_mine x I).
Qed.
Lemma later x h h' : inv x → past x h → past x h' → cur h < cur h' → ext h h'.
Proof.
  intros I Hh Hh' Hc. apply (i_ext x I); try done. destruct (decide (ver h ≤ ver h')); [done|].
  pose proof (x_cur _ _ (i_ext x I h' h Hh' Hh ltac:(lia))). lia.
Qed.

(** ** What follows [head] *)
Lemma ext_claimed i h : cur h ≤ top h → ext h (claimed i h).
Proof. intros. constructor; simpl; auto; intros; lia. Qed.
Lemma ext_pinned P h : cur h ≤ top h → uses h →
  (∀ y, y ∈ P → y ∈ pins h ∨ (∃ n, y = Ob n ∧ n ∈ refs h) ∨ (∃ t s, y = Sl t s ∧ base h ≤ s ∧ ch h !! s = Some t)) →
  ext h (pinned P h).
Proof.
  intros ? _ HP. constructor; simpl; auto; try (intros; lia).
  - intros n _ [?|Hn]; [by left|]. destruct (HP _ Hn) as [?|[(m&[= <-]&?)|(?&?&[=]&_)]]; [by right|by left].
  - intros t s Hs Hp Hn. destruct (HP _ Hn) as [?|[(m&[=]&_)|(?&?&[= <- <-]&?&_)]]; [done|lia].
Qed.
Lemma ext_published b r R h : cur h = top h → base h ≤ b → rt h `prefix_of` r →
  (∀ n, n ∈ R → n ∈ refs h ∨ n ∉ used h) → ext h (published b r R h).
Proof.
  intros ??? HR. constructor; simpl; auto; try (intros; lia).
  - intros n ?. apply elem_of_app. by left.
  - intros n Hu [Hn|?]; [|by right]. destruct (HR n Hn); [by left|done].
Qed.
Lemma ext_opened e h : cur h < top h → length (ch h) ≤ e → base h ≤ e → ext h (opened_at e h).
Proof.
  intros. constructor; simpl; auto; try (intros; lia).
  - by apply prefix_app_r.
  - intros s Hs. unfold term_at. simpl. destruct (decide (s < length (ch h))).
    + rewrite lookup_app_l by done. destruct (lookup_lt_is_Some_2 (ch h) s) as [t ->]; done.
    + rewrite (lookup_ge_None_2 (ch h)) by lia. rewrite lookup_app_r by lia.
      rewrite lookup_replicate_2 by lia. done.
  - intros _ _. rewrite app_length, replicate_length. f_equal. f_equal. lia.
Qed.

(** A swap that takes effect leads from [head] to what extends it. *)
Lemma open_facts x g e L : inv x → past x g → top g = top (hd x) → cur g < top g → cur (hd x) < top (hd x) →
  scan x g e L →
  cur g = cur (hd x) ∧ ch g = ch (hd x) ∧ base g = base (hd x) ∧ rt g = rt (hd x).
Proof.
  intros I Hg Ht Hc Hh _. assert (ext g (hd x)) as X.
  { apply (i_ext x I); [done|apply (i_hd x I)|by apply (i_last x I)]. }
  assert (cur g = cur (hd x)) as E.
  { pose proof (x_cur _ _ X). destruct (decide (cur g = cur (hd x))); [done|].
    pose proof (x_next _ _ X ltac:(lia)). lia. }
  pose proof (x_closed _ _ X E). destruct (x_fenced _ _ X E Hc). done.
Qed.
Lemma swap_cases x to : inv x → ok x (RSwap (hd x) to) →
  (∃ i, to = claimed i (hd x)) ∨
  (∃ e L, to = opened_at e (hd x) ∧ cur (hd x) < top (hd x) ∧ scan x (hd x) e L) ∨
  (∃ b r R, to = published b r R (hd x) ∧ top (hd x) = cur (hd x) ∧ base (hd x) ≤ b ∧ length r = b ∧
    rt (hd x) `prefix_of` r ∧
    (∀ s v, base (hd x) ≤ s → r !! s = Some v → was x (term_at (hd x) s) s (Ep v)) ∧
    (∀ n, n ∈ R → n ∈ refs (hd x) ∨ (landed x n ∧ n ∉ used (hd x)))) ∨
  (∃ P, to = pinned P (hd x) ∧
    (∀ y, y ∈ P → y ∈ pins (hd x) ∨ (∃ n, y = Ob n ∧ n ∈ refs (hd x)) ∨
      (∃ t s, y = Sl t s ∧ base (hd x) ≤ s ∧ ch (hd x) !! s = Some t))).
Proof.
  intros I Ho. remember (hd x) as h eqn:Eh.
  inversion Ho as [| | |i h' Hh|i h' g e L Hh Hi Hct Hg Ht Hj Hcg Hs|i h' b r R Hh Hi Ht Hb Hl Hr Hw HR|h' P Hh HP| |];
    simplify_eq.
  - left. eauto.
  - right; left. destruct (open_facts x g e L) as (E1&E2&E3&E4); auto.
    exists e, L. split_and!; auto. destruct Hs as (?&?&?&?&Hw&?).
    unfold scan. rewrite <-E1, <-E2, <-E3, <-E4. split_and!; auto.
    intros s v Hs Hv. apply (Hw s v Hs) in Hv. revert Hv. unfold term_at. by rewrite E1, E2.
  - right; right; left. exists (length r), r, R. split_and!; auto.
  - right; right; right. exists P. auto.
Qed.
Lemma ext_swap x to : inv x → ok x (RSwap (hd x) to) → ext (hd x) to.
Proof.
  intros I Ho. pose proof (i_cur x I _ (i_hd x I)) as Hc.
  destruct (swap_cases x to I Ho) as [(i&->)|[(e&L&->&?&Hs)|[(b&r&R&->&?&?&?&?&?&HR)|(P&->&?)]]].
  - by apply ext_claimed.
  - destruct Hs as (?&?&_). by apply ext_opened.
  - apply ext_published; auto. intros n Hn. destruct (HR n Hn) as [?|[??]]; auto.
  - apply ext_pinned; auto. apply (i_uses x I), (i_hd x I).
Qed.
Lemma ver_swap x to : inv x → ok x (RSwap (hd x) to) → ver to = S (ver (hd x)).
Proof.
  intros I Ho. destruct (swap_cases x to I Ho) as [(i&->)|[(e&L&->&?)|[(b&r&R&->&?)|(P&->&?)]]]; done.
Qed.

(** ** Each step keeps the invariant *)
Lemma before_hd x h : inv x → past x h → ext h (hd x).
Proof. intros I Hh. apply (i_ext x I); [done|apply (i_hd x I)|by apply (i_last x I)]. Qed.
(** A term's end is no slot that a checkpoint has. *)
Lemma end_kept x h h' g e : inv x → past x h → past x h' → cur h < cur h' → past x g →
  e < base g → term_at g e = cur h → (∀ v, ¬ was x (cur h) e (Ep v)) → False.
Proof.
  intros I Hh Hh' Hc Hg He Ht Hn. destruct (rt g !! e) as [v|] eqn:E.
  - apply (i_root x I _ _ _ Hg) in E. rewrite Ht in E. by eapply Hn.
  - apply lookup_ge_None in E. rewrite (i_rt x I _ Hg) in E. lia.
Qed.

Lemma inv_init : inv init.
Proof.
  constructor; simpl; try done.
  - intros h h' -> -> _. apply ext_refl.
  - intros h ->. done.
  - intros h ->. simpl. lia.
  - intros h s t -> ?. done.
  - intros h ->. by split; intros n Hn%elem_of_nil.
  - intros h ->. done.
  - intros h s v -> ?. done.
  - intros h s t -> ?. done.
  - intros h h' -> ->. lia.
  - intros n [Hn|Hn]; by apply elem_of_nil in Hn.
  - intros t s Hn. by apply elem_of_nil in Hn.
Qed.
Lemma inv_mine x i t s v : inv x → (∀ w, ¬ mine x i t s w) →
  inv (St (hd x) (slots x) (objs x) (sent x) (past x) (was x) (landed x)
    (λ i' t' s' v', mine x i' t' s' v' ∨ (i' = i ∧ t' = t ∧ s' = s ∧ v' = v)) (acked x) (opened x)).
Proof.
  intros I Hn. destruct I. constructor; simpl; try done.
  - intros r Hr. eapply ok_mono; [..|by apply i_sent0]; simpl; auto.
  - intros j t' s' v' w [Ha|(?&?&?&?)] [Hb|(?&?&?&?)]; simplify_eq; [by eapply i_mine0|by edestruct Hn|by edestruct Hn|done].
Qed.
Lemma inv_send x r : inv x → ok x r →
  inv (St (hd x) (slots x) (objs x) (λ r', sent x r' ∨ r' = r) (past x) (was x) (landed x)
    (mine x) (acked x) (opened x)).
Proof.
  intros I Hn. destruct I. constructor; simpl; try done.
  - intros r' [Hr| ->]; [eapply ok_mono; [..|by apply i_sent0]|eapply ok_mono; [..|exact Hn]]; simpl; auto.
  - intros t s b ?. left. auto.
Qed.
Lemma inv_put x t s b : inv x → sent x (RPut t s b) → slots x t s = None →
  inv (St (hd x) (upd (slots x) t s (Some b)) (objs x) (sent x) (past x)
    (λ t' s' b', was x t' s' b' ∨ (t' = t ∧ s' = s ∧ b' = b)) (landed x) (mine x) (acked x) (opened x)).
Proof.
  intros I Hs He. assert (∀ t' s' b', slots x t' s' = Some b' → upd (slots x) t s (Some b) t' s' = Some b') as Hu.
  { intros t' s' b' ?. unfold upd. case_decide; [|done]. naive_solver. }
  destruct I. constructor; simpl; try done.
  - intros r Hr. eapply ok_mono; [..|by apply i_sent0]; simpl; auto.
  - intros t' s' b' [?|(->&->&->)]; auto.
  - intros t' s' b' Hb [Hw|(->&->&->)]; [by apply Hu, i_kept0|].
    unfold upd. case_decide; naive_solver.
  - intros h s' v Hh Hv. left. by apply i_root0.
  - intros h s' t' Hh Ht. destruct (i_chain0 _ _ _ Hh Ht). eauto.
  - intros h h' Hh Hh' Hc. destruct (i_ends0 h h' Hh Hh' Hc) as (e&?&?&?&Hse&Hw).
    exists e. split_and!; try done; try lia; [by apply Hu|]. intros v [?|(<-&<-&_)]; [by eapply Hw|].
    congruence.
  - intros t' s' v Ha. destruct (i_acked0 _ _ _ Ha) as (h&?&?&?&?&Hk). exists h. split_and!; auto.
    intros k ?. destruct (Hk k) as [w ?]; eauto.
  - intros t' L Ho. destruct (i_opened0 _ _ Ho) as (h&g&?&?&?&?&?&?). exists h, g. split_and!; auto.
    eapply scan_mono; [|done]. simpl. auto.
  - intros t' s' Hp. destruct (i_pinned0 _ _ Hp) as [v ?]. exists v. by apply Hu.
Qed.
Lemma inv_obj x n : inv x → sent x (RObj n) →
  inv (St (hd x) (slots x) (λ m, objs x m ∨ m = n) (sent x) (past x) (was x)
    (λ m, landed x m ∨ m = n) (mine x) (acked x) (opened x)).
Proof.
  intros I Hs. destruct I. constructor; simpl; try done.
  - intros r Hr. eapply ok_mono; [..|by apply i_sent0]; simpl; auto.
  - intros m [?|?] ?; auto.
  - intros m ?. auto.
Qed.
Lemma inv_del_slot x t s : inv x → sent x (RDel (Sl t s)) →
  inv (St (hd x) (upd (slots x) t s None) (objs x) (sent x) (past x) (was x) (landed x)
    (mine x) (acked x) (opened x)).
Proof.
  intros I Hs. pose proof (i_sent x I _ Hs) as (g&Hg&Hb&Ht&Hp)%sent_del_slot.
  pose proof (before_hd x g I Hg) as X. pose proof (end_kept x) as Hend. pose proof I as I'.
  destruct I. constructor; simpl; try done.
  - intros r Hr. eapply ok_mono; [..|by apply i_sent0]; simpl; auto.
  - intros t' s' b Hs' Hw. unfold upd. case_decide as E; [|by apply i_kept0].
    destruct E as [-> ->]. pose proof (x_base _ _ X). lia.
  - intros h h' Hh Hh' Hc. destruct (i_ends0 h h' Hh Hh' Hc) as (e&?&?&?&Hse&Hw).
    exists e. split_and!; try done; try lia. simpl. unfold upd. case_decide as E; [|done].
    destruct E as [E ->]. exfalso. apply (Hend h h' g s); auto. congruence.
  - intros t' s' Hn. destruct (i_pinned0 _ _ Hn) as [v ?]. exists v. simpl. unfold upd. case_decide as E; [|done].
    destruct E as [-> ->]. exfalso. by apply (x_unpinned _ _ X t s).
Qed.
Lemma inv_del_obj x n : inv x → sent x (RDel (Ob n)) →
  inv (St (hd x) (slots x) (λ m, objs x m ∧ m ≠ n) (sent x) (past x) (was x) (landed x)
    (mine x) (acked x) (opened x)).
Proof.
  intros I Hs. pose proof (i_sent x I _ Hs) as (g&Hg&Hu&Hn)%sent_del_obj.
  pose proof (before_hd x g I Hg) as X. destruct I. constructor; simpl; try done.
  - intros r Hr. eapply ok_mono; [..|by apply i_sent0]; simpl; auto.
  - intros m Hl Hm. split; [by apply i_new0|]. intros ->. apply Hm. by apply (x_used _ _ X).
  - intros m Hm. split; [by apply i_named0|]. intros ->. apply Hn. by apply (x_forgot _ _ X).
Qed.
Lemma inv_ack x i h s v : inv x → past x h → who h = i → top h = cur h → length (ch h) ≤ s → mine x i (cur h) s v →
  (∀ k, length (ch h) ≤ k ≤ s → ∃ w, mine x i (cur h) k w ∧ was x (cur h) k (Ep w)) →
  inv (St (hd x) (slots x) (objs x) (sent x) (past x) (was x) (landed x) (mine x)
    (λ t' s' v', acked x t' s' v' ∨ (t' = cur h ∧ s' = s ∧ v' = v)) (opened x)).
Proof.
  intros I Hh Hi Ht Hs Hm Hk. destruct I. constructor; simpl; try done.
  - intros r Hr. eapply ok_mono; [..|by apply i_sent0]; simpl; auto.
  - intros t' s' v' [Ha|(->&->&->)]; [by apply i_acked0|]. exists h. split_and!; auto.
    + destruct (Hk s) as (w&Hw&?); [lia|]. by rewrite (i_mine0 _ _ _ _ _ Hm Hw).
    + intros k ?. destruct (Hk k) as (w&?&?); eauto.
Qed.
Lemma inv_opened x h g L : inv x → past x h → top h = cur h → past x g → top g = top h → cur g < top g →
  scan x g (length (ch h)) L →
  inv (St (hd x) (slots x) (objs x) (sent x) (past x) (was x) (landed x) (mine x) (acked x)
    (λ t' L', opened x t' L' ∨ (t' = cur h ∧ L' = L))).
Proof.
  intros I Hh Ht Hg Hu Hc Hs. destruct I. constructor; simpl; try done.
  - intros r Hr. eapply ok_mono; [..|by apply i_sent0]; simpl; auto.
  - intros t' L' [Ho|(->&->)]; [by apply i_opened0|]. exists h, g. split_and!; auto; congruence.
Qed.
Lemma inv_swap x to : inv x → ok x (RSwap (hd x) to) →
  inv (St to (slots x) (objs x) (sent x) (λ h, past x h ∨ h = to) (was x) (landed x)
    (mine x) (acked x) (opened x)).
Proof.
  intros I Ho. pose proof (ext_swap x to I Ho) as X. pose proof (ver_swap x to I Ho) as Hv.
  pose proof (swap_cases x to I Ho) as C. pose proof (i_hd x I) as Hhd. pose proof I as I'.
  pose proof (before_hd x) as Hb. pose proof (i_cur x I _ Hhd) as Hct.
  destruct I. constructor; simpl; try done.
  - by right.
  - intros h h' [Hh| ->] [Hh'| ->] Hvv; auto.
    + eapply ext_trans; [by apply Hb|done].
    + specialize (i_last0 _ Hh'). lia.
    + apply ext_refl.
  - intros h [Hh| ->]; [|done]. specialize (i_last0 _ Hh). lia.
  - intros h [Hh| ->]; [auto|]. destruct C as [(i&->)|[(e&L&->&?&_)|[(b&r&R&->&?&_)|(P&->&_)]]]; simpl; lia.
  - intros h s t [Hh| ->] Ht; [by eapply i_terms0|].
    destruct C as [(i&->)|[(e&L&->&?&_)|[(b&r&R&->&?&_)|(P&->&_)]]]; simpl in *; try by eapply i_terms0.
    apply lookup_app_Some in Ht as [Ht|[_ Ht]].
    + apply (i_terms0 _ _ _ Hhd) in Ht. lia.
    + apply lookup_replicate in Ht as [-> _]. done.
  - intros h [Hh| ->]; [auto|]. destruct (i_uses0 _ Hhd) as [U1 U2].
    destruct C as [(i&->)|[(e&L&->&?&_)|[(b&r&R&->&?&_)|(P&->&HP)]]]; split; simpl; auto.
    + intros n ?. apply elem_of_app. by right.
    + intros n ?. apply elem_of_app. left. auto.
    + intros n Hn. destruct (HP _ Hn) as [?|[(m&[= <-]&?)|(?&?&[=]&_)]]; auto.
  - intros r Hr. eapply ok_mono; [..|by apply i_sent0]; simpl; auto.
  - intros t s b ?. apply i_kept0. pose proof (x_base _ _ X). lia.
  - intros h [Hh| ->]; [auto|]. pose proof (i_rt0 _ Hhd).
    destruct C as [(i&->)|[(e&L&->&?&_)|[(b&r&R&->&?&?&?&_)|(P&->&HP)]]]; simpl; auto.
  - intros h s v [Hh| ->] Hr; [by apply i_root0|].
    assert (∀ w, rt (hd x) !! s = Some w → was x (term_at to s) s (Ep w)) as Hold.
    { intros w Hw. pose proof (lookup_lt_Some _ _ _ Hw) as Hl. rewrite (i_rt0 _ Hhd) in Hl.
      rewrite <-(x_term _ _ X) by auto. by apply i_root0. }
    destruct C as [(i&->)|[(e&L&->&?&_)|[(b&r&R&->&?&?&?&Hp&Hw&_)|(P&->&HP)]]]; simpl in *; auto.
    destruct (decide (base (hd x) ≤ s)); [by apply (Hw s v)|].
    destruct (rt (hd x) !! s) as [w|] eqn:E.
    + pose proof (prefix_lookup _ _ _ _ E Hp). simplify_eq. auto.
    + apply lookup_ge_None in E. rewrite (i_rt0 _ Hhd) in E. lia.
  - intros h s t [Hh| ->] Ht; [by eapply i_chain0|].
    destruct C as [(i&->)|[(e&L&->&?&Hs)|[(b&r&R&->&?&_)|(P&->&_)]]]; simpl in *; try by eapply i_chain0.
    apply lookup_app_Some in Ht as [Ht|[Hl Ht]]; [by eapply i_chain0|].
    apply lookup_replicate in Ht as [-> Hlt]. destruct Hs as (Hbe&Hle&HL&Hp&Hw&_).
    assert (term_at (hd x) s = cur (hd x)) as Ect.
    { unfold term_at. by rewrite lookup_ge_None_2 by lia. }
    destruct (lookup_lt_is_Some_2 L s) as [v Hv']; [lia|]. exists v. rewrite <-Ect.
    destruct (decide (base (hd x) ≤ s)); [by apply (Hw s v)|].
    destruct (rt (hd x) !! s) as [w|] eqn:E.
    + pose proof (prefix_lookup _ _ _ _ E Hp). simplify_eq. by apply i_root0.
    + apply lookup_ge_None in E. rewrite (i_rt0 _ Hhd) in E. lia.
  - intros h h' [Hh| ->] [Hh'| ->] Hc; [by apply i_ends0| | |lia].
    2:{ pose proof (x_cur _ _ (Hb h' I' Hh')). pose proof (x_cur _ _ X). lia. }
    pose proof (Hb h I' Hh) as Xh.
    destruct C as [(i&->)|[(e&L&->&?&Hs)|[(b&r&R&->&?&_)|(P&->&_)]]]; simpl in *;
      try by (destruct (i_ends0 h (hd x) Hh Hhd Hc) as (e&?); exists e).
    destruct Hs as (Hbe&Hle&HL&_&_&Hseal).
    assert (length (ch (hd x) ++ replicate (e - length (ch (hd x))) (cur (hd x))) = e) as El.
    { rewrite app_length, replicate_length. lia. }
    destruct (decide (cur h = cur (hd x))) as [E|E].
    + unfold ends. simpl. rewrite (x_closed _ _ Xh E), E, El. exists e. split_and!; try lia.
      * intros s ?. rewrite lookup_app_r by lia. apply lookup_replicate. split; [done|lia].
      * intros s Es. apply lookup_lt_Some in Es. lia.
      * by apply i_kept0.
      * intros v Hw. pose proof (i_kept0 _ _ _ Hbe Hw). pose proof (i_kept0 _ _ _ Hbe Hseal). congruence.
    + pose proof (x_cur _ _ Xh). destruct (i_ends0 h (hd x) Hh Hhd ltac:(lia)) as (d&?&Hd&Hm&?&?).
      exists d. simpl. rewrite El. split_and!; try done; try lia.
      * intros s ?. apply lookup_app_l_Some. auto.
      * intros s [Es|[_ Es]]%lookup_app_Some; [auto|]. apply lookup_replicate in Es as [? _]. lia.
  - intros t s v Ha. destruct (i_acked0 _ _ _ Ha) as (h&?&?). exists h. auto.
  - intros t L Hop. destruct (i_opened0 _ _ Hop) as (h&g&?&?&?&?&?&?). exists h, g. split_and!; auto.
  - intros n Hl Hn. apply i_new0; [done|]. intros ?. apply Hn. by apply (x_used _ _ X).
  - intros n Hn.
    destruct C as [(i&->)|[(e&L&->&?&_)|[(b&r&R&->&?&?&?&?&?&HR)|(P&->&HP)]]]; try by apply i_named0.
    + destruct Hn as [Hn|Hn]; [|by apply i_named0; right]. simpl in Hn.
      destruct (HR n Hn) as [?|[??]]; [by apply i_named0; left|by apply i_new0].
    + destruct Hn as [Hn|Hn]; [by apply i_named0; left|]. simpl in Hn.
      destruct (HP _ Hn) as [?|[(m&[= <-]&?)|(?&?&[=]&_)]]; apply i_named0; [by right|by left].
  - intros t s Hn.
    destruct C as [(i&->)|[(e&L&->&?&_)|[(b&r&R&->&?&_)|(P&->&HP)]]]; try by apply i_pinned0.
    simpl in Hn. destruct (HP _ Hn) as [?|[(m&[=]&_)|(t'&s'&[= <- <-]&?&Hch)]]; [by apply i_pinned0|].
    destruct (i_chain0 _ _ _ Hhd Hch) as [v Hw]. exists v. by apply i_kept0.
Qed.
Lemma inv_step x y : inv x → step x y → inv y.
Proof.
  intros I [ | | | |from to Hs Hf| | | | ].
  - by apply inv_mine.
  - by apply inv_send.
  - by apply inv_put.
  - by apply inv_obj.
  - apply inv_swap; [done|]. rewrite Hf. by apply (i_sent x I).
  - by apply inv_del_slot.
  - by apply inv_del_obj.
  - by eapply inv_ack.
  - by eapply (inv_opened _ _ g).
Qed.
Lemma inv_reachable x : reachable x → inv x.
Proof.
  unfold reachable. intros H. remember init as x0 eqn:E. assert (inv x0) as I by (subst; apply inv_init). clear E.
  induction H as [|x0 y z Hs _ IH]; [done|]. apply IH. by eapply inv_step.
Qed.

(** ** The theorems *)
(** What an opening read is what the slots of its history held. *)
Lemma opening_reads x t L s v : inv x → opened x t L → L !! s = Some v →
  ∃ h, past x h ∧ cur h = t ∧ s < length (ch h) ∧ length L = length (ch h) ∧ was x (term_at h s) s (Ep v).
Proof.
  intros I Ho Hv. destruct (i_opened x I _ _ Ho) as (h&g&Hh&Hc&Hg&Ht&Hlt&Hs). exists h.
  destruct Hs as (Hb&Hl&HL&Hp&Hw&_). pose proof (lookup_lt_Some _ _ _ Hv) as Hlen.
  split_and!; auto; [lia|]. assert (ext g h) as X by (apply (later x); auto; lia).
  destruct (decide (base g ≤ s)).
  - replace (term_at h s) with (term_at g s); [by apply Hw|].
    destruct (decide (s < length (ch g))); [apply (x_term _ _ X); auto|].
    unfold term_at at 2. rewrite (x_direct _ _ X) by lia.
    rewrite lookup_app_r by lia. rewrite lookup_replicate_2 by lia. simpl.
    unfold term_at. by rewrite lookup_ge_None_2 by lia.
  - destruct (rt g !! s) as [w|] eqn:E.
    + pose proof (prefix_lookup _ _ _ _ E Hp). simplify_eq.
      rewrite <-(x_term _ _ X) by lia. by apply (i_root x I).
    + apply lookup_ge_None in E. rewrite (i_rt x I _ Hg) in E. lia.
Qed.

(** Acknowledged in a term: in every later opening, at its place. *)
Theorem acknowledged_is_kept x t s v u L :
  reachable x → acked x t s v → opened x u L → t < u → L !! s = Some v.
Proof.
  intros I%inv_reachable Ha Ho Htu.
  destruct (i_acked x I _ _ _ Ha) as (h&Hh&Hc&Hl&Hw&Hk).
  destruct (i_opened x I _ _ Ho) as (k&g&Hkp&Hkc&_&_&_&(_&_&HL&_)).
  destruct (i_ends x I h k Hh Hkp ltac:(lia)) as (e&?&Hs&_&_&Hn). rewrite Hc in *.
  assert (s < e) as Hse.
  { destruct (decide (s < e)); [done|]. destruct (Hk e) as [w Hw']; [lia|]. by apply Hn in Hw'. }
  destruct (lookup_lt_is_Some_2 L s) as [w Hv]; [lia|].
  destruct (opening_reads x u L s w I Ho Hv) as (k'&Hk'&Hkc'&_&_&Hr).
  assert (ch k' = ch k) as E.
  { destruct (decide (ver k ≤ ver k')).
    - symmetry. apply (x_closed _ _ (i_ext x I k k' Hkp Hk' ltac:(lia))). congruence.
    - apply (x_closed _ _ (i_ext x I k' k Hk' Hkp ltac:(lia))). congruence. }
  unfold term_at in Hr. rewrite E, (Hs s) in Hr by lia. simpl in Hr.
  by rewrite (was_one x t s v w I Hw Hr).
Qed.
(** Openings are prefixes of one another. *)
Theorem openings_are_prefixes x t u L M :
  reachable x → opened x t L → opened x u M → t ≤ u → L `prefix_of` M.
Proof.
  intros I%inv_reachable Ho Hp Htu.
  destruct (i_opened x I _ _ Ho) as (h&_&Hh&Hc&_&_&_&(_&_&HL&_)).
  destruct (i_opened x I _ _ Hp) as (k&_&Hk&Hd&_&_&_&(_&_&HM&_)).
  assert (ch h `prefix_of` ch k) as P.
  { destruct (decide (ver h ≤ ver k)) as [E|E]; [apply (x_ch _ _ (i_ext x I h k Hh Hk E))|].
    pose proof (i_ext x I k h Hk Hh ltac:(lia)) as X. pose proof (x_cur _ _ X).
    by rewrite (x_closed _ _ X) by lia. }
  assert (∀ s v, L !! s = Some v → M !! s = Some v) as HLM.
  { intros s v Hv. destruct (opening_reads x t L s v I Ho Hv) as (h'&Hh'&Hc'&Hs'&Hl'&Hw).
    pose proof (prefix_length _ _ P).
    destruct (lookup_lt_is_Some_2 M s) as [w Hw']; [lia|]. rewrite Hw'. f_equal.
    destruct (opening_reads x u M s w I Hp Hw') as (k'&Hk'&Hd'&Hks&_&Hwk).
    assert (term_at h' s = term_at k' s) as E.
    { destruct (decide (ver h' ≤ ver k')) as [E|E].
      - apply (x_term _ _ (i_ext x I h' k' Hh' Hk' E)). auto.
      - symmetry. apply (x_term _ _ (i_ext x I k' h' Hk' Hh' ltac:(lia))). auto. }
    rewrite E in Hw. by apply (was_one x _ _ _ _ I Hwk Hw). }
  exists (drop (length L) M). apply list_eq. intros s. destruct (decide (s < length L)) as [Hs|Hs].
  - rewrite lookup_app_l by done. destruct (lookup_lt_is_Some_2 L s Hs) as [v Hv]. rewrite Hv. by apply HLM.
  - rewrite lookup_app_r, lookup_drop by lia. f_equal. lia.
Qed.
(** No two writers are acknowledged at one slot. *)
Theorem one_writer_per_slot x t u s v w :
  reachable x → acked x t s v → acked x u s w → t < u → False.
Proof.
  intros I%inv_reachable Ha Hb Htu.
  destruct (i_acked x I _ _ _ Ha) as (h&Hh&Hc&_&_&Hk).
  destruct (i_acked x I _ _ _ Hb) as (k&Hkp&Hd&Hl&_).
  destruct (i_ends x I h k Hh Hkp ltac:(lia)) as (e&?&_&_&_&Hn). rewrite Hc in *.
  destruct (Hk e) as [z Hz]; [lia|]. by apply Hn in Hz.
Qed.
(** What [head], a checkpoint or a snapshot names is there: the slots after the checkpoint, those of
    the open term that were acknowledged, the checkpoint's objects, and what is pinned. *)
Theorem named_slot_is_there x s t :
  reachable x → base (hd x) ≤ s → ch (hd x) !! s = Some t → holds x t s.
Proof.
  intros I%inv_reachable Hs Ht. destruct (i_chain x I _ _ _ (i_hd x I) Ht) as [v Hw].
  exists v. by apply (i_kept x I).
Qed.
Theorem acknowledged_slot_is_there x s t v :
  reachable x → base (hd x) ≤ s → acked x t s v → slots x t s = Some (Ep v).
Proof.
  intros I%inv_reachable Hs Ha. destruct (i_acked x I _ _ _ Ha) as (h&_&_&_&Hw&_). by apply (i_kept x I).
Qed.
Theorem named_object_is_there x n : reachable x → named (hd x) n → objs x n.
Proof. intros I%inv_reachable. apply (i_named x I). Qed.
Theorem pinned_slot_is_there x t s : reachable x → Sl t s ∈ pins (hd x) → holds x t s.
Proof. intros I%inv_reachable. apply (i_pinned x I). Qed.
(** The seal of a term that was closed is never deleted. *)
Theorem seal_is_there x h h' : reachable x → past x h → past x h' → cur h < cur h' →
  ∃ e, slots x (cur h) e = Some Seal ∧ (∀ s, ch h' !! s = Some (cur h) → s < e).
Proof.
  intros I%inv_reachable Hh Hh' Hc. destruct (i_ends x I h h' Hh Hh' Hc) as (e&?&?&?&?&?). eauto.
Qed.
End fence.
