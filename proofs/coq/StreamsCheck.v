(** An executable checker for the streams of the running code. It reads what operations refer
    to, what freezes together and what each record consists of; it computes itself which
    operations depend on one another, and keeps the least merging that this forces. What it
    accepts is a run of [Streams], so what holds there of every prefix of the records holds of
    the operations that the trace names. *)
From stdpp Require Import prelude functions list sorting.
From Steadfast Require Import Streams.

(** ** What operations refer to *)
Inductive use := UWrite | UAdd | ULatest.
Inductive ref :=
  | RObj (excl : bool) (obj : nat)
  | RBits (u : use) (block from len : nat)   (** bits of a block *)
  | REnd (block : nat).                      (** the block's life begins or ends *)
Record oper := Op { o_id : nat; o_str : nat; o_refs : list ref }.

(** Sums of one counter commute, and so do values of which the newest counts. *)
Definition commute (u u' : use) (from from' : nat) : bool :=
  match u, u' with UAdd, UAdd => Init.Nat.eqb from from' | ULatest, ULatest => true | _, _ => false end.
Definition conflict (r r' : ref) : bool :=
  match r, r' with
  | RObj e o, RObj e' o' => Init.Nat.eqb o o' && (e || e')
  | RBits u b f l, RBits u' b' f' l' =>
      Init.Nat.eqb b b' && Init.Nat.ltb f (f' + l') && Init.Nat.ltb f' (f + l) && negb (commute u u' f f')
  | RBits _ b _ _, REnd b' | REnd b, RBits _ b' _ _ | REnd b, REnd b' => Init.Nat.eqb b b'
  | _, _ => false
  end.
Definition relates (x y : oper) : bool := existsb (λ r, existsb (conflict r) (o_refs y)) (o_refs x).
Notation sdep := (dep o_str relates).
Definition depb (x y : oper) : bool := Init.Nat.eqb (o_str x) (o_str y) || relates x y.

Fixpoint mem (n : nat) (l : list nat) : bool :=
  match l with [] => false | m :: l => if Init.Nat.eqb n m then true else mem n l end.

(** ** The checker *)
Record txn := T { t_id : nat; t_ops : list oper; t_after : list nat }.
Record chk := C {
  c_n : nat;              (** operations so far *)
  c_seen : list nat;      (** their names *)
  c_run : list txn;       (** running transactions *)
  c_closed : list txn }.  (** closed ones that no record holds yet, oldest first *)
Inductive ev := EOp (x : oper) | EClose (ids : list nat) | ELay (ids : list nat).

Definition names (l : list txn) : list nat := o_id <$> concat (t_ops <$> l).
(** An operation of [t] comes before [x]. *)
Definition follows (x : oper) (t : txn) : bool := existsb (λ y, depb y x) (t_ops t).
Definition touched (ids : list nat) (t : txn) : bool := existsb (λ y, mem (o_id y) ids) (t_ops t).
(** [ids] name the operations of [l], each once. *)
Definition named (ids : list nat) (l : list txn) : bool :=
  Init.Nat.eqb (length ids) (length (names l)) && forallb (λ i, mem i ids) (names l).
(** No transaction of [l] follows one of [rest], or one that comes later in [l]. *)
Fixpoint in_order (l rest : list txn) : bool :=
  match l with
  | [] => true
  | t :: l' => forallb (λ u, negb (mem u (t_id <$> l) || mem u (t_id <$> rest))) (t_after t) && in_order l' rest
  end.

Definition exec (c : chk) (e : ev) : option chk :=
  let '(C n seen run closed) := c in
  match e with
  | EOp x =>
      if mem (o_id x) seen then None else
      let '(M, rest) := List.partition (follows x) run in
      let E := t_id <$> List.filter (follows x) closed in
      let id := match M with t :: _ => t_id t | [] => n end in
      Some (C (S n) (o_id x :: seen)
        (T id (x :: concat (t_ops <$> M)) (E ++ concat (t_after <$> M)) :: rest) closed)
  | EClose ids =>
      let '(M, rest) := List.partition (touched ids) run in
      if named ids M then Some (C n seen rest (closed ++ M)) else None
  | ELay ids =>
      let '(M, rest) := List.partition (touched ids) closed in
      if named ids M && in_order M rest then Some (C n seen run rest) else None
  end.
Fixpoint execs (c : chk) (l : list ev) : option chk :=
  match l with [] => Some c | e :: l => match exec c e with Some c => execs c l | None => None end end.
Definition start : chk := C 0 [] [] [].

(** What a trace says: operations in the order of their commits, records as it names them. *)
Definition ops_of (l : list ev) : list oper := l ≫= λ e, match e with EOp x => [x] | _ => [] end.
Definition lays_of (l : list ev) : list (list nat) := l ≫= λ e, match e with ELay ids => [ids] | _ => [] end.

(** ** Soundness *)
Notation bst := (@bst oper nat).
Notation bstep := (bstep o_str relates).
Notation bsteps := (bsteps o_str relates).
Notation orderly := (orderly o_str relates).

Lemma mem_spec n l : mem n l = true ↔ n ∈ l.
Proof.
  induction l as [|m l IH]; simpl; [by rewrite elem_of_nil|]. rewrite elem_of_cons.
  destruct (Nat.eqb_spec n m) as [->|Hn]; [by split; auto|]. rewrite IH. split; [auto|by intros [?|?]].
Qed.
Lemma depb_spec x y : depb x y = true ↔ sdep x y.
Proof. unfold depb, dep. by rewrite orb_true_iff, Nat.eqb_eq, Is_true_true. Qed.
Lemma existsb_spec {A} (f : A → bool) l : existsb f l = true ↔ ∃ x, x ∈ l ∧ f x = true.
Proof. rewrite existsb_exists. by setoid_rewrite elem_of_list_In. Qed.
Lemma forallb_spec {A} (f : A → bool) l : forallb f l = true ↔ ∀ x, x ∈ l → f x = true.
Proof. rewrite forallb_forall. by setoid_rewrite elem_of_list_In. Qed.
Lemma follows_spec x t : follows x t = true ↔ ∃ y, y ∈ t_ops t ∧ sdep y x.
Proof. unfold follows. rewrite existsb_spec. by setoid_rewrite depb_spec. Qed.
Lemma partition_spec {A} (f : A → bool) l a b : List.partition f l = (a, b) →
  l ≡ₚ a ++ b ∧ (∀ x, x ∈ a ↔ x ∈ l ∧ f x = true) ∧ (∀ x, x ∈ b ↔ x ∈ l ∧ f x = false).
Proof.
  revert a b. induction l as [|x l IH]; simpl; intros a b.
  - intros [= <- <-]. split; [done|]. split; intros x; rewrite elem_of_nil; tauto.
  - destruct (List.partition f l) as [a' b']. destruct (IH a' b' eq_refl) as (Hp&Ha&Hb).
    destruct (f x) eqn:Ef; intros [= <- <-].
    + split; [by rewrite Hp|]. split; intros y; rewrite ?elem_of_cons, ?Ha, ?Hb;
        (split; [first [intros [->|[? ?]]|intros [? ?]]|intros [[->|?] ?]]); auto; congruence.
    + split; [by rewrite Hp, Permutation_middle|]. split; intros y; rewrite ?elem_of_cons, ?Ha, ?Hb;
        (split; [first [intros [->|[? ?]]|intros [? ?]]|intros [[->|?] ?]]); auto; congruence.
Qed.
Lemma filter_spec {A} (f : A → bool) l x : x ∈ List.filter f l ↔ x ∈ l ∧ f x = true.
Proof. by rewrite !elem_of_list_In, filter_In. Qed.
Lemma concat_elem {A B} (f : A → list B) l x : x ∈ concat (f <$> l) ↔ ∃ t, t ∈ l ∧ x ∈ f t.
Proof.
  induction l as [|t l IH]; csimpl.
  - rewrite elem_of_nil. split; [done|]. by intros (?&?%elem_of_nil&_).
  - rewrite elem_of_app, IH. split.
    + intros [?|(t'&?&?)]; [exists t|exists t']; by rewrite elem_of_cons; auto.
    + intros (t'&[->|?]%elem_of_cons&?); eauto.
Qed.
Lemma names_elem i l : i ∈ names l ↔ ∃ t x, t ∈ l ∧ x ∈ t_ops t ∧ i = o_id x.
Proof.
  unfold names. rewrite elem_of_list_fmap. setoid_rewrite concat_elem. naive_solver.
Qed.
Lemma names_app l k : names (l ++ k) = names l ++ names k.
Proof. unfold names. by rewrite fmap_app, concat_app, fmap_app. Qed.
Global Instance names_proper : Proper ((≡ₚ) ==> (≡ₚ)) names.
Proof.
  intros l k H. unfold names. apply fmap_Permutation. induction H; simpl; rewrite ?app_assoc; [done|by f_equiv| |by etrans].
  apply Permutation_app; [apply Permutation_app_comm|done].
Qed.
Lemma named_spec ids l : NoDup (names l) → named ids l = true → names l ≡ₚ ids.
Proof.
  intros Hn [Hl%Nat.eqb_eq Ha]%andb_true_iff. rewrite forallb_spec in Ha.
  apply submseteq_Permutation_length_le; [by rewrite Hl|]. apply NoDup_submseteq; [done|].
  intros i Hi. by apply mem_spec, Ha.
Qed.

(** The checker knows, of a state of the model, what may still change. *)
Record sim (lays : list (list nat)) (n : nat) (seen : list nat) (rl cl : list txn) (s : bst) : Prop := {
  m_len : n = length (hist s);
  m_seen : ∀ i x, hist s !! i = Some x → o_id x ∈ seen;
  m_lays : ∀ ids i, ids ∈ lays → i ∈ ids → ∃ j x, hist s !! j = Some x ∧ o_id x = i;
  m_ids : ∀ i j x y, hist s !! i = Some x → hist s !! j = Some y → o_id x = o_id y → i = j;
  m_keys : NoDup (t_id <$> rl ++ cl);
  m_names : NoDup (names (rl ++ cl));
  m_free : ∀ t, n ≤ t → ph s t = PNone;
  m_run : ∀ t, ph s t = PRun ↔ t ∈ t_id <$> rl;
  m_closed : ∀ t, ph s t = PClosed ↔ t ∈ t_id <$> cl;
  m_ops : ∀ t x, t ∈ rl ++ cl → x ∈ t_ops t ↔ ∃ i, hist s !! i = Some x ∧ own s i = t_id t;
  m_stream : ∀ k u, run s k = Some u → ∃ t x, t ∈ rl ∧ t_id t = u ∧ x ∈ t_ops t ∧ o_str x = k;
  m_last : ∀ k u, lastc s k = Some u → ph s u = PClosed → ∃ t x, t ∈ cl ∧ t_id t = u ∧ x ∈ t_ops t ∧ o_str x = k;
  m_lastp : ∀ k u, lastc s k = Some u → ph s u = PClosed ∨ ph s u = PLaid;
  m_dir : ∀ t u, t ∈ rl ++ cl → dir s (t_id t) u → u ∈ t_after t;
  m_recs : Forall2 (λ ts ids, ∀ i x, hist s !! i = Some x → own s i ∈ ts ↔ o_id x ∈ ids) (recs s) lays }.

Lemma sim_perm lays n seen rl rl' cl s : rl ≡ₚ rl' → sim lays n seen rl cl s → sim lays n seen rl' cl s.
Proof.
  intros Hp []. assert (Hin : ∀ t, t ∈ rl' ++ cl ↔ t ∈ rl ++ cl) by (intros t; by rewrite Hp).
  assert (Hin' : ∀ t, t ∈ rl' ↔ t ∈ rl) by (intros t; by rewrite Hp).
  constructor; try done.
  - by rewrite <-Hp.
  - by rewrite <-Hp.
  - intros t. rewrite m_run0. by rewrite Hp.
  - intros t x. rewrite Hin. auto.
  - intros k u Hu. setoid_rewrite Hin'. auto.
  - intros t u. rewrite Hin. auto.
Qed.

Lemma key_inj (l : list txn) t t' : NoDup (t_id <$> l) → t ∈ l → t' ∈ l → t_id t = t_id t' → t = t'.
Proof.
  intros Hn [i Hi]%elem_of_list_lookup [j Hj]%elem_of_list_lookup E.
  assert (i = j) as ->; [|congruence].
  eapply NoDup_lookup; [done| |]; rewrite list_lookup_fmap; [by rewrite Hi|rewrite Hj; simpl; by rewrite E].
Qed.
Lemma key_elem u (l : list txn) : u ∈ t_id <$> l ↔ ∃ t, t ∈ l ∧ t_id t = u.
Proof. rewrite elem_of_list_fmap. split; intros (t&?&?); eauto. Qed.
(** An operation is listed where it is owned. *)
Lemma owned lays n seen rl cl s i x t : sim lays n seen rl cl s →
  hist s !! i = Some x → t ∈ rl ++ cl → own s i = t_id t → x ∈ t_ops t.
Proof. intros [] Hx Ht E. apply m_ops0; eauto. Qed.

Lemma sim_op lays n seen rl cl s x M rest :
  binv o_str relates s → sim lays n seen rl cl s → o_id x ∉ seen → List.partition (follows x) rl = (M, rest) →
  ∃ s', bstep s s' ∧ hist s' = hist s ++ [x] ∧
    sim lays (S n) (o_id x :: seen)
      (T (match M with t :: _ => t_id t | [] => n end) (x :: concat (t_ops <$> M))
         ((t_id <$> List.filter (follows x) cl) ++ concat (t_after <$> M)) :: rest) cl s'.
Proof.
  intros Hv Hs Hx Hpart. apply partition_spec in Hpart as (Hp&HM&Hrest).
  apply (sim_perm _ _ _ _ _ _ _ Hp) in Hs. pose proof Hs as Hs0. destruct Hs.
  assert (HMr : ∀ t, t ∈ M → follows x t = true) by (intros t; rewrite HM; tauto).
  assert (Hrr : ∀ t, t ∈ rest → follows x t = false) by (intros t; rewrite Hrest; tauto).
  clear rl Hp HM Hrest. rename M into L.
  set (id := match L with t :: _ => t_id t | [] => n end).
  destruct s as [H ow p r lc d q R]; simpl in *. subst n.
  set (K := t_id <$> L). set (E := t_id <$> List.filter (follows x) cl).
  assert (Hin : ∀ t, t ∈ L → t ∈ (L ++ rest) ++ cl) by (intros t ?; rewrite !elem_of_app; auto).
  assert (Hinr : ∀ t, t ∈ rest ++ cl → t ∈ (L ++ rest) ++ cl) by (intros t; rewrite !elem_of_app; tauto).
  assert (HK : ∀ t, t ∈ K → p t = PRun).
  { intros t Ht. apply m_run0. rewrite fmap_app. apply elem_of_app. by left. }
  assert (Hkr : ∀ t, t ∈ rest ++ cl → t_id t ∉ K ∧ t_id t ≠ id).
  { intros t Ht. rewrite <-app_assoc, fmap_app in m_keys0. apply NoDup_app in m_keys0 as (_&Hd&_).
    assert (t_id t ∉ K) as Hn by (intros Hk; apply (Hd _ Hk), elem_of_list_fmap_1; done). split; [done|].
    intros Hi. destruct L as [|t0 L']; [|apply Hn; rewrite Hi; left].
    assert (p (t_id t) = PNone) as Hf by (apply m_free0; rewrite Hi; unfold id; lia).
    apply elem_of_app in Ht as [Ht|Ht]; [assert (p (t_id t) = PRun) by (apply m_run0, elem_of_list_fmap_1; done)|
      assert (p (t_id t) = PClosed) by (apply m_closed0, elem_of_list_fmap_1; done)]; congruence. }
  assert (Hid : id ∈ K ∨ p id = PNone ∧ ∀ t, t ∉ K).
  { unfold id, K. destruct L as [|t0 L']; [right|left; left]. split; [by apply m_free0|]. intros t. apply not_elem_of_nil. }
  assert (Hjoin : ∀ i y, H !! i = Some y → sdep y x → p (ow i) = PRun → ow i ∈ K).
  { intros i y Hy Hd Hpi. apply m_run0, key_elem in Hpi as (t&Ht&Eo).
    assert (y ∈ t_ops t) as Hyt by (eapply m_ops0; [rewrite elem_of_app; by left|eauto]).
    apply elem_of_app in Ht as [Ht|Ht]; [rewrite <-Eo; by apply elem_of_list_fmap_1|].
    specialize (Hrr t Ht). apply not_true_iff_false in Hrr. destruct Hrr. apply follows_spec. eauto. }
  assert (Hafter : ∀ i y, H !! i = Some y → sdep y x → p (ow i) = PClosed → ow i ∈ E).
  { intros i y Hy Hd Hpi. apply m_closed0, key_elem in Hpi as (t&Ht&Eo). rewrite <-Eo.
    apply elem_of_list_fmap_1, filter_spec. split; [done|]. apply follows_spec. exists y. split; [|done].
    eapply m_ops0; [rewrite elem_of_app; by right|eauto]. }
  assert (Hrun : ∀ t, r (o_str x) = Some t → t ∈ K).
  { intros u Hu. destruct (m_stream0 _ _ Hu) as (t&y&Ht&<-&Hy&Hk). apply elem_of_app in Ht as [Ht|Ht].
    - by apply elem_of_list_fmap_1.
    - specialize (Hrr t Ht). apply not_true_iff_false in Hrr. destruct Hrr. apply follows_spec. exists y. split; [done|by left]. }
  assert (HE : ∀ u, u ∈ E → p u = PClosed).
  { intros u (t&Ht&<-)%key_elem. apply filter_spec in Ht as [Ht _]. apply m_closed0. by apply elem_of_list_fmap_1. }
  set (ow' := λ i, if decide (i = length H) then id else if decide (ow i ∈ K) then id else ow i).
  set (p' := λ t, if decide (t = id) then PRun else if decide (t ∈ K) then PNone else p t).
  set (r' := λ k, if decide (k = o_str x) then Some id else
    match r k with Some t => if decide (t ∈ K) then Some id else Some t | None => None end).
  set (d' := λ t u, (t ≠ id ∧ t ∉ K ∧ d t u) ∨ (t = id ∧ ((∃ m, m ∈ K ∧ d m u) ∨ u ∈ E))).
  set (q' := λ t u, (t ≠ id ∧ t ∉ K ∧ q t u) ∨ (t = id ∧ ((∃ m, m ∈ K ∧ q m u) ∨ ∃ w, w ∈ E ∧ (u = w ∨ q w u)))).
  assert (Hstep : bstep (B H ow p r lc d q R) (B (H ++ [x]) ow' p' r' lc d' q' R)).
  { apply (b_commit o_str relates x (.∈ K) id (.∈ E)); try done.
    - intros i y Hy Hrl. apply (Hjoin i y Hy). by right.
    - intros i y Hy Hrl. apply (Hafter i y Hy). by right.
    - intros u _ Hu Hpu. destruct (m_last0 _ _ Hu Hpu) as (t&y&Ht&<-&Hy&Hk).
      apply elem_of_list_fmap_1, filter_spec. split; [done|]. apply follows_spec. exists y. split; [done|by left].
    - intros i Hi. unfold ow'. rewrite decide_False by lia. case_decide; auto.
    - unfold ow'. by rewrite decide_True.
    - intros t. unfold p'. case_decide; [by left|]. case_decide; auto.
    - intros k. unfold r'. case_decide; [by left|]. destruct (r k) as [t|] eqn:Er.
      + case_decide; [right; left; eauto|]. right. right. split; [done|]. split; [|done]. by intros ? [= <-].
      + right. right. done. }
  eexists. split; [exact Hstep|]. simpl. split; [done|].
  assert (Hl' : length (H ++ [x]) = S (length H)) by (rewrite app_length; simpl; lia).
  assert (Hlook : ∀ i y, (H ++ [x]) !! i = Some y → (i < length H ∧ H !! i = Some y) ∨ (i = length H ∧ y = x)).
  { intros i y [Hy|[Hi Hy]]%lookup_app_Some; [left; eauto using lookup_lt_Some|right].
    apply list_lookup_singleton_Some in Hy as [? <-]. split; [lia|done]. }
  assert (Hidl : ∀ ts, ts ∈ R → id ∉ ts).
  { intros ts Hts Hi. destruct Hv. simpl in *. assert (p id = PLaid) as Hl.
    { apply v_laid. unfold laid. simpl. rewrite <-(list_fmap_id R). apply concat_elem. by exists ts. }
    destruct Hid as [Hi'%HK|[Hi' _]]; congruence. }
  assert (HKl : ∀ ts t, ts ∈ R → t ∈ K → t ∉ ts).
  { intros ts t Hts Ht Hi. destruct Hv. simpl in *. assert (p t = PLaid) as Hl.
    { apply v_laid. unfold laid. simpl. rewrite <-(list_fmap_id R). apply concat_elem. by exists ts. }
    apply HK in Ht. congruence. }
  assert (Hopsd : ∀ y, y ∈ concat (t_ops <$> L) ↔ ∃ t, t ∈ L ∧ y ∈ t_ops t) by (intros; apply concat_elem).
  constructor; simpl.
  - done.
  - intros i y [[Hi Hy]|[-> ->]]%Hlook; [right; by eapply m_seen0|left].
  - intros ids i Hids Hi. destruct (m_lays0 _ _ Hids Hi) as (j&y&Hy&?). exists j, y. split; [|done].
    by apply lookup_app_l_Some.
  - intros i j y z [[Hi Hy]|[-> ->]]%Hlook [[Hj Hz]|[-> ->]]%Hlook Eid; [by eapply m_ids0| | |done].
    + destruct Hx. rewrite <-Eid. by eapply m_seen0.
    + destruct Hx. rewrite Eid. by eapply m_seen0.
  - apply NoDup_cons. split.
    + intros (t&Ht&Et)%key_elem. by destruct (Hkr t Ht).
    + rewrite <-app_assoc, fmap_app in m_keys0. by apply NoDup_app in m_keys0 as (_&_&?).
  - unfold names. simpl. rewrite fmap_app. rewrite <-app_assoc, names_app in m_names0.
    apply NoDup_cons. split; [|exact m_names0]. intros Hi. apply Hx.
    assert (o_id x ∈ names ((L ++ rest) ++ cl)) as Hi'.
    { by rewrite <-app_assoc, names_app. }
    apply names_elem in Hi' as (t&y&Ht&Hy&->). apply m_ops0 in Hy as (i&Hy&_); [|done]. by eapply m_seen0.
  - intros t Ht. unfold p'. rewrite decide_False.
    + rewrite decide_False; [apply m_free0; lia|]. intros Hk%HK. rewrite m_free0 in Hk; [done|lia].
    + intros ->. destruct Hid as [Hk%HK|[_ Hno]].
      * rewrite m_free0 in Hk; [done|lia].
      * unfold id in Ht. destruct L as [|t0 L']; [lia|]. apply (Hno (t_id t0)). left.
  - intros t. rewrite elem_of_cons. unfold p'. case_decide as E1; [tauto|]. rewrite fmap_app in m_run0. case_decide as E2.
    + split; [done|]. intros [?|Ht]; [done|]. apply key_elem in Ht as (t'&Ht&<-).
      destruct (Hkr t'); [rewrite elem_of_app; by left|done].
    + rewrite m_run0, elem_of_app. fold K. tauto.
  - intros t. rewrite <-m_closed0. unfold p'. case_decide as E1.
    + split; [done|]. subst t. intros Hc. destruct Hid as [Hk%HK|[Hk _]]; congruence.
    + case_decide as E2; [|done]. apply HK in E2. split; congruence.
  - intros t y. rewrite elem_of_cons. intros [->|Ht]; simpl.
    + rewrite elem_of_cons, Hopsd. split.
      * intros [->|(t&Ht&Hy)].
        -- exists (length H). unfold ow'. rewrite decide_True by done. split; [|done]. by apply list_lookup_middle.
        -- apply m_ops0 in Hy as (i&Hi&Ho); [|by apply Hin]. exists i. split; [by apply lookup_app_l_Some|].
           unfold ow'. rewrite decide_False; [|apply lookup_lt_Some in Hi; lia]. rewrite decide_True; [done|].
           rewrite Ho. by apply elem_of_list_fmap_1.
      * intros (i&[[Hi Hy]|[_ ->]]%Hlook&Ho); [right|by left]. unfold ow' in Ho. rewrite decide_False in Ho by lia.
        case_decide as Hk.
        -- apply key_elem in Hk as (t&Ht&Et). exists t. split; [done|]. apply m_ops0; [by apply Hin|eauto].
        -- destruct Hid as [Hk'|[Hf _]]; [by rewrite Ho in Hk|]. destruct Hv. simpl in *. destruct (v_own i Hi). by rewrite Ho.
    + destruct (Hkr t Ht) as [Hn1 Hn2]. rewrite m_ops0 by auto. split; intros (i&Hi&Ho).
      * exists i. split; [by apply lookup_app_l_Some|]. unfold ow'. rewrite decide_False; [|apply lookup_lt_Some in Hi; lia].
        rewrite decide_False; [done|]. by rewrite Ho.
      * unfold ow' in Ho. case_decide; [by destruct Hn2|]. case_decide; [by destruct Hn2|]. exists i. split; [|done].
        destruct (Hlook _ _ Hi) as [[_ ?]|[? _]]; done.
  - intros k u Hu. unfold r' in Hu. case_decide as E1.
    + injection Hu as <-. eexists _, x. split; [left|]. simpl. split; [done|]. split; [left|done].
    + destruct (r k) as [t|] eqn:Er; [|done]. destruct (m_stream0 _ _ Er) as (t'&y&Ht'&<-&Hy&Hk). case_decide as E2.
      * injection Hu as <-. eexists _, y. split; [left|]. simpl. split; [done|]. split; [|done]. right. apply Hopsd.
        exists t'. split; [|done]. apply elem_of_app in Ht' as [?|Ht']; [done|].
        destruct (Hkr t'); [rewrite elem_of_app; by left|done].
      * injection Hu as <-. exists t', y. split; [|done]. right. apply elem_of_app in Ht' as [Ht'|?]; [|done].
        destruct E2. by apply elem_of_list_fmap_1.
  - intros k u Hu Hc. apply m_last0; [done|]. unfold p' in Hc. case_decide as E1; [done|]. by case_decide.
  - intros k u Hu. assert (u ≠ id ∧ u ∉ K) as [Hn1 Hn2].
    { destruct (m_lastp0 _ _ Hu) as [Hu'|Hu']; (split; [intros ->; destruct Hid as [Hk%HK|[Hk _]]; congruence|intros Hk%HK; congruence]). }
    unfold p'. rewrite !decide_False by done. by eapply m_lastp0.
  - intros t u. rewrite elem_of_cons. intros [->|Ht]; simpl.
    + intros [(?&_)|(_&[(m&Hm&Hd)|Hu])]; [done| |rewrite elem_of_app; by left]. rewrite elem_of_app. right.
      apply key_elem in Hm as (t&Ht&<-). apply concat_elem. exists t. split; [done|].
      apply m_dir0; [by apply Hin|done].
    + destruct (Hkr t Ht) as [Hn1 Hn2]. intros [(_&_&Hd)|(?&_)]; [|done]. apply m_dir0; auto.
  - assert (Hids : ∀ ids, ids ∈ lays → o_id x ∉ ids) 
      by (intros ids Hids Hi; destruct (m_lays0 _ _ Hids Hi) as (j&y&Hy&Ey); apply Hx; rewrite <-Ey; eauto).
    revert Hidl HKl Hids. clear -m_recs0 Hlook. induction m_recs0 as [|ts ids R' lays' H1 H2 IH]; constructor.
    + intros i y [[Hi Hy]|[-> ->]]%Hlook; unfold ow'.
      * rewrite decide_False by lia. rewrite <-(H1 i y Hy). case_decide as Hk; [|done].
        split; intros Hts; exfalso; [eapply Hidl; [left|done]|eapply HKl; [left|done|done]].
      * rewrite decide_True by done. split; intros Hts; exfalso; [eapply Hidl; [left|done]|eapply Hids; [left|done]].
    + apply IH; intros; [eapply Hidl|eapply HKl|eapply Hids]; try right; done.
Qed.

Lemma sim_close1 lays n seen t rl cl s : sim lays n seen (t :: rl) cl s →
  ∃ s', bstep s s' ∧ hist s' = hist s ∧ ph s (t_id t) = PRun ∧ ph s' (t_id t) = PClosed ∧ sim lays n seen rl (cl ++ [t]) s'.
Proof.
  intros Hs. pose proof Hs as []. destruct s as [H ow p r lc d q R]; simpl in *.
  assert (Ht : p (t_id t) = PRun) by (apply m_run0; left).
  set (p' := λ u, if decide (u = t_id t) then PClosed else p u).
  set (r' := λ k, if decide (r k = Some (t_id t)) then None else r k).
  set (lc' := λ k, if decide (r k = Some (t_id t)) then Some (t_id t) else lc k).
  assert (Hperm : rl ++ cl ++ [t] ≡ₚ t :: rl ++ cl) by (rewrite app_assoc, Permutation_app_comm; done).
  assert (Hin : ∀ t', t' ∈ rl ++ cl ++ [t] ↔ t' ∈ t :: rl ++ cl) by (intros; by rewrite Hperm).
  assert (Hn1 : ∀ t', t' ∈ rl ++ cl → t_id t' ≠ t_id t).
  { intros t' Ht' E. apply NoDup_cons in m_keys0 as [Hn _]. apply Hn. rewrite <-E. by apply elem_of_list_fmap_1. }
  eexists. split_and!.
  - apply (b_close o_str relates (t_id t) H ow p r lc d q R p' r' lc' Ht).
    + intros u. unfold p'. case_decide; auto.
    + intros k. unfold r', lc'. case_decide; auto.
  - done.
  - done.
  - simpl. unfold p'. by rewrite decide_True.
  - constructor; simpl; try done.
    + by rewrite Hperm.
    + by rewrite Hperm.
    + intros u Hu. unfold p'. rewrite decide_False; [auto|]. intros ->. rewrite m_free0 in Ht; done.
    + intros u. unfold p'. case_decide as E.
      * split; [done|]. intros (t'&Ht'&<-)%key_elem. destruct (Hn1 t'); [rewrite elem_of_app; by left|done].
      * rewrite m_run0, elem_of_cons. tauto.
    + intros u. unfold p'. rewrite fmap_app, elem_of_app. simpl. rewrite elem_of_list_singleton. case_decide as E; [tauto|].
      rewrite m_closed0. tauto.
    + intros t' x. rewrite Hin. apply m_ops0.
    + intros k u Hu. unfold r' in Hu. case_decide as E; [done|]. destruct (m_stream0 _ _ Hu) as (t'&x&Ht'&<-&?&?).
      exists t', x. split; [|done]. apply elem_of_cons in Ht' as [->|?]; done.
    + intros k u Hu Hp. unfold lc' in Hu. case_decide as E.
      * injection Hu as <-. destruct (m_stream0 _ _ E) as (t'&x&Ht'&Et&?&?). exists t, x.
        split; [rewrite elem_of_app; right; left|]. split; [done|]. apply elem_of_cons in Ht' as [->|Ht']; [done|].
        destruct (Hn1 t'); [rewrite elem_of_app; by left|done].
      * unfold p' in Hp. case_decide as E'.
        -- subst u. destruct (m_lastp0 _ _ Hu); congruence.
        -- destruct (m_last0 _ _ Hu Hp) as (t'&x&Ht'&?&?&?). exists t', x. split; [rewrite elem_of_app; by left|done].
    + intros k u Hu. unfold lc' in Hu. unfold p'. case_decide as E; [injection Hu as <-; left; by rewrite decide_True|].
      rewrite decide_False; [by eapply m_lastp0|]. intros ->. destruct (m_lastp0 _ _ Hu); congruence.
    + intros t' u. rewrite Hin. apply m_dir0.
Qed.
(** The closed ones, and the order in which all have closed. *)
Notation queued q cl := ((t_id <$> cl) `sublist_of` q).
Lemma sim_close lays n seen L rl cl s q : orderly s q → queued q cl → sim lays n seen (L ++ rl) cl s →
  ∃ s' q', orderly s' q' ∧ queued q' (cl ++ L) ∧ hist s' = hist s ∧ sim lays n seen rl (cl ++ L) s'.
Proof.
  revert cl s q. induction L as [|t L IH]; simpl; intros cl s q Ho Hq Hs.
  - exists s, q. by rewrite app_nil_r.
  - destruct (sim_close1 _ _ _ _ _ _ _ Hs) as (s1&H1&E1&Hr&Hc&Hs1).
    destruct (IH (cl ++ [t]) s1 (q ++ [t_id t])) as (s2&q2&H2&Hq2&E2&Hs2); [by eapply o_close| |done|].
    + rewrite fmap_app. by apply sublist_app.
    + exists s2, q2. rewrite <-app_assoc in Hq2, Hs2. split_and!; [done..|congruence|done].
Qed.

Lemma in_order_spec l rest j t u : in_order l rest = true → l !! j = Some t → u ∈ t_after t →
  u ∈ t_id <$> l ++ rest → ∃ i, i < j ∧ (t_id <$> l) !! i = Some u.
Proof.
  revert j. induction l as [|t' l IH]; intros j; [done|]. cbn [in_order]. intros [Ha Ho]%andb_true_iff Ht Hu Hin.
  destruct j as [|j]; simpl in Ht.
  - injection Ht as ->. rewrite forallb_spec in Ha. specialize (Ha u Hu).
    apply negb_true_iff, orb_false_iff in Ha as [Ha Hb]. rewrite fmap_app in Hin. exfalso.
    apply elem_of_app in Hin as [Hin%mem_spec|Hin%mem_spec]; congruence.
  - rewrite <-app_comm_cons, fmap_cons in Hin. apply elem_of_cons in Hin as [->|Hin]; [exists 0; split; [lia|done]|].
    destruct (IH j Ho Ht Hu Hin) as (i&?&?). exists (S i). split; [lia|done].
Qed.

Lemma sim_lay lays n seen ids M rest rl cl s :
  binv o_str relates s → sim lays n seen rl cl s → List.partition (touched ids) cl = (M, rest) →
  named ids M = true → in_order M rest = true →
  ∃ s', bstep s s' ∧ hist s' = hist s ∧ recs s' = recs s ++ [t_id <$> M] ∧ sim (lays ++ [ids]) n seen rl rest s'.
Proof.
  intros Hv Hs Hpart Hnm Hord. apply partition_spec in Hpart as (Hp&_&_). pose proof Hs as [].
  assert (Hpp : rl ++ cl ≡ₚ M ++ rl ++ rest) by (rewrite Hp; solve_Permutation).
  apply named_spec in Hnm; [|rewrite Hpp, names_app in m_names0; by apply NoDup_app in m_names0 as (?&_)].
  destruct s as [H ow p r lc d q R]; simpl in *. set (ts := t_id <$> M).
  assert (Hin : ∀ t, t ∈ rl ++ cl ↔ t ∈ M ++ rl ++ rest) by (intros; by rewrite Hpp).
  assert (HM : ∀ t, t ∈ M → t ∈ rl ++ cl) by (intros t ?; apply Hin, elem_of_app; by left).
  assert (Hkd : NoDup (ts ++ (t_id <$> rl ++ rest))) by (unfold ts; by rewrite <-fmap_app, <-Hpp).
  apply NoDup_app in Hkd as (Hnd&Hdis&Hnr).
  assert (Hcl : ∀ u, u ∈ t_id <$> cl ↔ u ∈ ts ∨ u ∈ t_id <$> rest) by (intros u; rewrite Hp, fmap_app, elem_of_app; done).
  assert (Hts : ∀ u, u ∈ ts → p u = PClosed) by (intros u Hu; apply m_closed0, Hcl; by left).
  set (p' := λ u, if decide (u ∈ ts) then PLaid else p u).
  eexists. split_and!.
  - apply (b_lay o_str relates ts H ow p r lc d q R p'); [done|done| |].
    + intros j u w Hj Hd. unfold ts in Hj. rewrite list_lookup_fmap in Hj. destruct (M !! j) as [t|] eqn:Et; [|done].
      injection Hj as <-. destruct Hv. simpl in *. destruct (v_dir _ _ Hd) as [_ [Hc|Hl]]; [right|by left].
      assert (t ∈ rl ++ cl) as Ht by (apply HM; by eapply elem_of_list_lookup_2).
      apply (in_order_spec M rest j t w Hord Et); [by apply m_dir0|]. rewrite fmap_app, elem_of_app. by apply Hcl, m_closed0.
    + intros u. unfold p'. case_decide; auto.
  - done.
  - done.
  - assert (Hsub : ∀ t, t ∈ rl ++ rest → t ∈ rl ++ cl) by (intros t ?; apply Hin, elem_of_app; by right).
    constructor; simpl; try done.
    + intros l i [Hl|Hl]%elem_of_app Hi; [eauto|]. apply elem_of_list_singleton in Hl as ->.
      rewrite <-Hnm in Hi. apply names_elem in Hi as (t&x&Ht&Hx&->). apply m_ops0 in Hx as (j&Hj&_); [|auto]. eauto.
    + rewrite Hpp, names_app in m_names0.
      by apply NoDup_app in m_names0 as (_&_&?).
    + intros u Hu. unfold p'. rewrite decide_False; [auto|]. intros Hc%Hts. rewrite m_free0 in Hc; done.
    + intros u. unfold p'. case_decide as E; [|done]. split; [done|]. intros Hu%m_run0. apply Hts in E. congruence.
    + intros u. unfold p'. case_decide as E.
      * split; [done|]. intros Hu. destruct (Hdis u E). rewrite fmap_app, elem_of_app. by right.
      * rewrite m_closed0, Hcl. tauto.
    + intros t x Ht. apply m_ops0. auto.
    + intros k u Hu Hpu. unfold p' in Hpu. case_decide as E; [done|]. destruct (m_last0 _ _ Hu Hpu) as (t&x&Ht&<-&?&?).
      exists t, x. split; [|done]. rewrite Hp in Ht. apply elem_of_app in Ht as [Ht|?]; [|done].
      destruct E. by apply elem_of_list_fmap_1.
    + intros k u Hu. unfold p'. case_decide; [by right|by eapply m_lastp0].
    + intros t u Ht. apply m_dir0. auto.
    + apply Forall2_app; [done|]. constructor; [|constructor]. intros i x Hx. rewrite <-Hnm, names_elem. split.
      * intros (t&Ht&Et)%key_elem. exists t, x. split; [done|]. split; [|done]. apply m_ops0; [by apply HM|]. eauto.
      * intros (t&y&Ht&Hy&Eid). apply m_ops0 in Hy as (j&Hj&Ho); [|by apply HM].
        rewrite (m_ids0 _ _ _ _ Hx Hj Eid), Ho. by apply elem_of_list_fmap_1.
Qed.

Definition init_state : bst := B [] (λ _, 0) (λ _, PNone) (λ _, None) (λ _, None) (λ _ _, False) (λ _ _, False) [].
Lemma init_sim : sim [] 0 [] [] [] init_state.
Proof.
  constructor; simpl; try done; try constructor; try done; try (intros ?; by rewrite elem_of_nil).
  all: intros; exfalso; by eapply elem_of_nil.
Qed.
Lemma reached s q : orderly s q → binv o_str relates s.
Proof. intros H. by eapply reach_inv, orderly_steps. Qed.
Lemma partition_sub {A} (f : A → bool) l a b : List.partition f l = (a, b) → a `sublist_of` l ∧ b `sublist_of` l.
Proof.
  revert a b. induction l as [|x l IH]; simpl; intros a b; [by intros [= <- <-]|].
  destruct (List.partition f l) as [a' b']. destruct (IH a' b' eq_refl). destruct (f x); intros [= <- <-]; by split; constructor.
Qed.

Lemma exec_sound lays c s q e c' :
  orderly s q → queued q (c_closed c) → sim lays (c_n c) (c_seen c) (c_run c) (c_closed c) s → exec c e = Some c' →
  ∃ s' q', orderly s' q' ∧ queued q' (c_closed c') ∧ hist s' = hist s ++ ops_of [e] ∧
    sim (lays ++ lays_of [e]) (c_n c') (c_seen c') (c_run c') (c_closed c') s'.
Proof.
  intros Hb Hq Hs. destruct c as [n seen rl cl]. simpl in Hq, Hs. pose proof (reached _ _ Hb) as Hv.
  destruct e as [x|ids|ids]; simpl; rewrite ?app_nil_r.
  - destruct (mem (o_id x) seen) eqn:Em; [done|]. destruct (List.partition (follows x) rl) as [M rest] eqn:Ep.
    intros [= <-]. simpl. assert (o_id x ∉ seen) as Hx by (intros Hi%mem_spec; congruence).
    destruct (sim_op _ _ _ _ _ _ _ _ _ Hv Hs Hx Ep) as (s'&?&?&?). exists s', q. split; [by eapply o_commit|done].
  - destruct (List.partition (touched ids) rl) as [M rest] eqn:Ep. destruct (named ids M); [|done]. intros [= <-]. simpl.
    apply partition_spec in Ep as (Hp&_&_). apply (sim_perm _ _ _ _ _ _ _ Hp) in Hs. by eapply sim_close.
  - destruct (List.partition (touched ids) cl) as [M rest] eqn:Ep. destruct (partition_sub _ _ _ _ Ep) as [HM Hrest].
    destruct (named ids M) eqn:En; [|done]. destruct (in_order M rest) eqn:Eo; [|done]. intros [= <-]. simpl.
    destruct (sim_lay _ _ _ _ _ _ _ _ _ Hv Hs Ep En Eo) as (s'&?&?&?&?). exists s', q.
    split_and!; [|etrans; [by apply fmap_sublist|done]|done..]. eapply o_lay; [done..|]. etrans; [by apply fmap_sublist|done].
Qed.
Lemma of_cons e l : ops_of (e :: l) = ops_of [e] ++ ops_of l ∧ lays_of (e :: l) = lays_of [e] ++ lays_of l.
Proof. unfold ops_of, lays_of. by rewrite <-!bind_app. Qed.
Lemma execs_sound l lays c s q c' :
  orderly s q → queued q (c_closed c) → sim lays (c_n c) (c_seen c) (c_run c) (c_closed c) s → execs c l = Some c' →
  ∃ s' q', orderly s' q' ∧ hist s' = hist s ++ ops_of l ∧
    sim (lays ++ lays_of l) (c_n c') (c_seen c') (c_run c') (c_closed c') s'.
Proof.
  revert lays c s q. induction l as [|e l IH]; intros lays c s q Hb Hq Hs; cbn [execs].
  - intros [= <-]. exists s, q. by rewrite !app_nil_r.
  - destruct (of_cons e l) as [-> ->]. rewrite !app_assoc. destruct (exec c e) as [c1|] eqn:E; [|done]. intros Hx.
    destruct (exec_sound _ _ _ _ _ _ Hb Hq Hs E) as (s1&q1&H1&Hq1&E1&Hs1).
    destruct (IH _ _ _ _ H1 Hq1 Hs1 Hx) as (s2&q2&H2&E2&Hs2). exists s2, q2. split; [done|].
    by rewrite E2, E1.
Qed.

Lemma accepted_sim l c : execs start l = Some c →
  ∃ s q, orderly s q ∧ hist s = ops_of l ∧ sim (lays_of l) (c_n c) (c_seen c) (c_run c) (c_closed c) s.
Proof. intros Hx. apply (execs_sound l [] start init_state [] c); [by constructor|constructor|apply init_sim|done]. Qed.

(** An accepted trace is a run of the model that commits the trace's operations, and whose
    records hold the transactions of exactly the operations that the trace names, in the order in which they closed. *)
Theorem accepted l c : execs start l = Some c →
  ∃ s q, orderly s q ∧ hist s = ops_of l ∧
    Forall2 (λ ts ids, ∀ i x, hist s !! i = Some x → own s i ∈ ts ↔ o_id x ∈ ids) (recs s) (lays_of l).
Proof. intros (s&q&?&?&[])%accepted_sim. eauto. Qed.

Lemma survivors l (s : bst) k i x : Forall2 (λ ts ids, ∀ i x, hist s !! i = Some x → own s i ∈ ts ↔ o_id x ∈ ids) (recs s) l →
  hist s !! i = Some x → survives_in s k i ↔ o_id x ∈ concat (take k l).
Proof.
  intros HF Hx. unfold survives_in. assert (i < length (hist s)) as Hi by by eapply lookup_lt_Some.
  transitivity (own s i ∈ concat (take k (recs s))); [tauto|]. apply (Forall2_take _ _ _ k) in HF.
  induction HF as [|ts ids R L H1 H2 IH]; simpl; [by rewrite !elem_of_nil|]. by rewrite !elem_of_app, IH, (H1 i x Hx).
Qed.
(** What the first [k] records of an accepted trace name is closed under what it follows:
    with an operation there is every earlier one of its stream, and every earlier one that it
    relates to, of whatever stream. *)
Theorem accepted_closed l c k i j x y :
  execs start l = Some c → i < j → ops_of l !! i = Some x → ops_of l !! j = Some y → sdep x y →
  o_id y ∈ concat (take k (lays_of l)) → o_id x ∈ concat (take k (lays_of l)).
Proof.
  intros (s&q&Hs&Hh&HF)%accepted Hij Hx Hy Hd Hin. apply (orderly_steps _ _ init_state) in Hs; [|done]. rewrite <-Hh in Hx, Hy.
  apply (survivors _ s k i x HF Hx). apply (survivors _ s k j y HF Hy) in Hin.
  by eapply (prefix_closed o_str relates init_state s k i j x y).
Qed.
(** Each operation is in one record at most, and in none before its commit. *)
Theorem accepted_once l c a b ids ids' n :
  execs start l = Some c → lays_of l !! a = Some ids → lays_of l !! b = Some ids' → n ∈ ids → n ∈ ids' →
  a = b ∧ ∃ x, x ∈ ops_of l ∧ o_id x = n.
Proof.
  intros (s&q&Hs&Hh&[])%accepted_sim Ha Hb Hn Hn'. destruct (reached _ _ Hs) as [].
  destruct (m_lays0 ids n) as (j&x&Hx&<-); [by eapply elem_of_list_lookup_2|done|]. split.
  - destruct (Forall2_lookup_r _ _ _ _ _ m_recs0 Ha) as (ts&Hts&Hr). destruct (Forall2_lookup_r _ _ _ _ _ m_recs0 Hb) as (ts'&Hts'&Hr').
    apply (Hr j x Hx) in Hn. apply (Hr' j x Hx) in Hn'. unfold laid in v_nodup.
    clear -Hts Hts' Hn Hn' v_nodup. revert a b Hts Hts'. induction (recs s) as [|t R IH]; intros a b Ha Hb; [done|].
    simpl in v_nodup. apply NoDup_app in v_nodup as (_&Hd&Hr).
    assert (Hc : ∀ i u, R !! i = Some u → own s j ∈ u → own s j ∈ concat R).
    { intros i u Hi Hu. rewrite <-(list_fmap_id R). apply concat_elem. exists u. split; [by eapply elem_of_list_lookup_2|done]. }
    destruct a as [|a], b as [|b]; simpl in *; [done| | |f_equal; by apply IH].
    + injection Ha as <-. destruct (Hd (own s j)); eauto.
    + injection Hb as <-. destruct (Hd (own s j)); eauto.
  - exists x. rewrite <-Hh. split; [by eapply elem_of_list_lookup_2|done].
Qed.
(** Every prefix of an accepted trace is accepted. *)
Theorem accepted_prefix l1 l2 c : execs start (l1 ++ l2) = Some c → ∃ c', execs start l1 = Some c'.
Proof.
  generalize start. induction l1 as [|e l1 IH]; intros s; simpl; [eauto|]. destruct (exec s e); [apply IH|done].
Qed.
(** What freezes is what the trace says, in whole transactions. *)
Theorem accepted_close l ids c c' : execs start l = Some c → exec c (EClose ids) = Some c' →
  names (c_run c) ≡ₚ ids ++ names (c_run c') ∧ names (c_closed c') ≡ₚ names (c_closed c) ++ ids.
Proof.
  intros (s&q&_&_&[])%accepted_sim. destruct c as [n seen rl cl]; simpl in *.
  destruct (List.partition (touched ids) rl) as [M rest] eqn:Ep. destruct (named ids M) eqn:En; [|done].
  intros [= <-]. simpl. apply partition_spec in Ep as (Hp&_&_). rewrite Hp, !names_app in m_names0.
  assert (names M ≡ₚ ids) as Hi.
  { apply named_spec; [|done]. rewrite <-app_assoc in m_names0. by apply NoDup_app in m_names0 as (?&_). }
  by rewrite Hp, !names_app, Hi.
Qed.

(** ** What it means not to relate *)
Definition apart (r r' : ref) : Prop :=
  match r, r' with
  | RObj e o, RObj e' o' => o = o' → e = false ∧ e' = false
  | RBits u b f l, RBits u' b' f' l' => b = b' →
      (∀ i, f ≤ i < f + l → ¬ f' ≤ i < f' + l') ∨ (u = UAdd ∧ u' = UAdd ∧ f = f') ∨ (u = ULatest ∧ u' = ULatest)
  | RBits _ b _ _, REnd b' | REnd b, RBits _ b' _ _ | REnd b, REnd b' => b ≠ b'
  | _, _ => True
  end.
Theorem unrelated_apart x y r r' : relates x y = false → r ∈ o_refs x → r' ∈ o_refs y → apart r r'.
Proof.
  intros Hn Hr Hr'. assert (conflict r r' = false) as Hc.
  { apply not_true_iff_false. intros Hc. apply not_true_iff_false in Hn. apply Hn. apply existsb_spec. exists r.
    split; [done|]. apply existsb_spec. eauto. }
  clear Hn Hr Hr'. destruct r as [e o|u b f l|b], r' as [e' o'|u' b' f' l'|b']; simpl in *; try done.
  - intros ->. rewrite Nat.eqb_refl in Hc. by apply orb_false_iff in Hc.
  - intros ->. rewrite Nat.eqb_refl in Hc. simpl in Hc. apply andb_false_iff in Hc as [Hc|Hc].
    + left. intros i ??. apply andb_false_iff in Hc as [Hc%Nat.ltb_ge|Hc%Nat.ltb_ge]; lia.
    + right. apply negb_false_iff in Hc. destruct u, u'; simpl in Hc; try done; [left|by right].
      apply Nat.eqb_eq in Hc. done.
  - by apply Nat.eqb_neq in Hc.
  - by apply Nat.eqb_neq in Hc.
  - by apply Nat.eqb_neq in Hc.
Qed.
