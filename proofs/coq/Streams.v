(** Streams are running transactions: what one mount appends, how transactions merge, close
    and enter records, and what any prefix of its records therefore contains.

    Operations are numbered in the order in which they were committed in memory. The model is
    as loose as the rules allow: a commit may merge more running transactions and order more
    closed ones before it than it must. *)
From stdpp Require Import prelude functions list.

Section streams.
Context {op stream : Type} `{!EqDecision stream} (str : op → stream).
(** [rel x y]: the later operation [y] relates to [x]: objects or bytes in common. *)
Context (rel : op → op → Prop).

Inductive phase := PNone | PRun | PClosed | PLaid.
Record bst := B {
  hist : list op;              (** operations in the order of their commits *)
  own : nat → nat;             (** operation → its transaction *)
  ph : nat → phase;            (** transaction → its phase; [PNone]: not in use *)
  run : stream → option nat;   (** the stream's running transaction *)
  lastc : stream → option nat; (** its last one that closed *)
  dir : nat → nat → Prop;      (** [dir t u]: [u] must be laid before [t] *)
  pre : nat → nat → Prop;      (** what that leads to (proof only) *)
  recs : list (list nat) }.    (** the records: transactions in their order *)

Definition laid (s : bst) : list nat := concat (recs s).
(** [u] is laid before [t] if [t] is. *)
Definition lb (l : list nat) (u t : nat) : Prop :=
  t ∈ l → ∃ i j, l !! i = Some u ∧ l !! j = Some t ∧ i < j.

Inductive bstep : bst → bst → Prop :=
(* [M] are the transactions that become one, [id] the one that stays (or a new one), [E] the
   closed ones that must come before *)
| b_commit x (M : nat → Prop) (id : nat) (E : nat → Prop) H (ow : nat → nat) p r lc (d q : nat → nat → Prop) R :
    (∀ t, M t → p t = PRun) →
    (∀ t, r (str x) = Some t → M t) →
    (∀ i y, H !! i = Some y → rel y x → p (ow i) = PRun → M (ow i)) →
    (M id ∨ p id = PNone ∧ (∀ t, ¬ M t)) →
    (∀ u, E u → p u = PClosed) →
    (∀ i y, H !! i = Some y → rel y x → p (ow i) = PClosed → E (ow i)) →
    (∀ c, r (str x) = None → lc (str x) = Some c → p c = PClosed → E c) →
    ∀ (ow' : nat → nat) (p' : nat → phase) r' (d' q' : nat → nat → Prop),
    (∀ i, i < length H → (M (ow i) ∧ ow' i = id) ∨ (¬ M (ow i) ∧ ow' i = ow i)) →
    ow' (length H) = id →
    (∀ t, (t = id ∧ p' t = PRun) ∨ (t ≠ id ∧ M t ∧ p' t = PNone) ∨ (t ≠ id ∧ ¬ M t ∧ p' t = p t)) →
    (∀ s, (s = str x ∧ r' s = Some id) ∨ (∃ t, r s = Some t ∧ M t ∧ r' s = Some id) ∨
          (s ≠ str x ∧ (∀ t, r s = Some t → ¬ M t) ∧ r' s = r s)) →
    (∀ t u, d' t u ↔ (t ≠ id ∧ ¬ M t ∧ d t u) ∨ (t = id ∧ ((∃ m, M m ∧ d m u) ∨ E u))) →
    (∀ t u, q' t u ↔ (t ≠ id ∧ ¬ M t ∧ q t u) ∨
        (t = id ∧ ((∃ m, M m ∧ q m u) ∨ ∃ w, E w ∧ (u = w ∨ q w u)))) →
    bstep (B H ow p r lc d q R) (B (H ++ [x]) ow' p' r' lc d' q' R)
(* closing is freezing: from now on nothing joins [t] *)
| b_close t H ow p r lc (d q : nat → nat → Prop) R p' r' lc' :
    p t = PRun →
    (∀ u, (u = t ∧ p' u = PClosed) ∨ (u ≠ t ∧ p' u = p u)) →
    (∀ s, (r s = Some t ∧ r' s = None ∧ lc' s = Some t) ∨ (r s ≠ Some t ∧ r' s = r s ∧ lc' s = lc s)) →
    bstep (B H ow p r lc d q R) (B H ow p' r' lc' d q R)
(* the next record: each transaction after everything that it follows *)
| b_lay (ts : list nat) H ow p r lc (d q : nat → nat → Prop) R p' :
    NoDup ts → (∀ t, t ∈ ts → p t = PClosed) →
    (∀ j t u, ts !! j = Some t → d t u → p u = PLaid ∨ ∃ i, i < j ∧ ts !! i = Some u) →
    (∀ u, (u ∈ ts ∧ p' u = PLaid) ∨ (u ∉ ts ∧ p' u = p u)) →
    bstep (B H ow p r lc d q R) (B H ow p' r lc d q (R ++ [ts])).

Definition dep (x y : op) : Prop := str x = str y ∨ rel x y.
(** Operation [i]'s transaction precedes [t], is it, or was laid before it. *)
Definition ord (s : bst) (u t : nat) : Prop := u = t ∨ pre s t u ∨ (u ∈ laid s ∧ lb (laid s) u t).

Record binv (s : bst) : Prop := {
  v_own : ∀ i, i < length (hist s) → ph s (own s i) ≠ PNone;
  v_laid : ∀ t, t ∈ laid s ↔ ph s t = PLaid;
  v_nodup : NoDup (laid s);
  v_run : ∀ c t, run s c = Some t → ph s t = PRun;
  v_dir : ∀ t u, dir s t u → ph s t ≠ PNone ∧ (ph s u = PClosed ∨ ph s u = PLaid);
  v_pre : ∀ t u, pre s t u → (ph s u = PClosed ∨ ph s u = PLaid) ∧
    (dir s t u ∨ ∃ w, dir s t w ∧ pre s w u) ∧ lb (laid s) u t;
  v_dep : ∀ i j x y, i < j → hist s !! i = Some x → hist s !! j = Some y → dep x y →
    ord s (own s i) (own s j);
  v_str : ∀ c i x, hist s !! i = Some x → str x = c →
    match run s c with
    | Some r => own s i = r ∨ pre s r (own s i) ∨ own s i ∈ laid s
    | None => own s i ∈ laid s ∨ ∃ l, lastc s c = Some l ∧ (ph s l = PClosed ∨ ph s l = PLaid) ∧
        (own s i = l ∨ pre s l (own s i))
    end }.

Lemma lb_not l u t : t ∉ l → lb l u t.
Proof. by intros H ?. Qed.
Lemma lb_app l k u t : (u ∈ l) → lb l u t → lb (l ++ k) u t.
Proof.
  intros Hu H Ht. destruct (decide (t ∈ l)) as [Hl|Hl].
  - destruct (H Hl) as (i&j&Hi&Hj&?). exists i, j. split_and!; [by apply lookup_app_l_Some..|done].
  - apply elem_of_app in Ht as [?|Ht]; [done|]. apply elem_of_list_lookup in Hu as [i Hi].
    apply elem_of_list_lookup in Ht as [j Hj]. exists i, (length l + j). split_and!.
    + by apply lookup_app_l_Some.
    + rewrite lookup_app_r by lia. by replace (length l + j - length l) with j by lia.
    + apply lookup_lt_Some in Hi. lia.
Qed.
Lemma lb_trans l u w t : NoDup l → lb l u w → lb l w t → lb l u t.
Proof.
  intros Hn H1 H2 Ht. destruct (H2 Ht) as (i&j&Hi&Hj&?).
  destruct H1 as (i'&j'&Hi'&Hj'&?); [by eapply elem_of_list_lookup_2|].
  assert (j' = i) as -> by by eapply NoDup_lookup. exists i', j. split_and!; [done..|lia].
Qed.

Lemma ok_close t H ow p r lc (d q : nat → nat → Prop) R p' r' lc' :
  p t = PRun → (∀ u, (u = t ∧ p' u = PClosed) ∨ (u ≠ t ∧ p' u = p u)) →
  (∀ s, (r s = Some t ∧ r' s = None ∧ lc' s = Some t) ∨ (r s ≠ Some t ∧ r' s = r s ∧ lc' s = lc s)) →
  binv (B H ow p r lc d q R) → binv (B H ow p' r' lc' d q R).
Proof.
  intros Ht Hp Hs []; simpl in *.
  assert (Hkeep : ∀ u, p u = PClosed ∨ p u = PLaid → p' u = PClosed ∨ p' u = PLaid).
  { intros u Hu. destruct (Hp u) as [[-> ->]|[_ ->]]; auto. }
  constructor; simpl.
  - intros i Hi. destruct (Hp (ow i)) as [[_ ->]|[_ ->]]; [done|auto].
  - intros u. unfold laid in *. simpl in *. rewrite v_laid0. destruct (Hp u) as [[-> ->]|[_ ->]]; [|done].
    split; congruence.
  - done.
  - intros c u Hu. destruct (Hs c) as [(_&E&_)|(Hne&E&_)]; rewrite E in Hu; [done|].
    destruct (Hp u) as [[-> _]|[_ ->]]; [done|by eapply v_run0].
  - intros a b Hd. destruct (v_dir0 a b Hd). split; [|by apply Hkeep]. destruct (Hp a) as [[_ ->]|[_ ->]]; done.
  - intros a b Hq. destruct (v_pre0 a b Hq) as (?&?&?). split; [by apply Hkeep|done].
  - done.
  - intros c i x Hx Hc. specialize (v_str0 c i x Hx Hc). destruct (Hs c) as [(E1&E2&E3)|(Hne&E2&E3)]; rewrite E2.
    + rewrite E1 in v_str0. destruct v_str0 as [E|[E|E]]; [right|right|by left]; exists t; rewrite E3;
        (split; [done|]); (split; [left; by destruct (Hp t) as [[_ ->]|[? _]]|]); auto.
    + destruct (r c); [done|]. destruct v_str0 as [E|(l&E&Hl&?)]; [by left|right]. exists l. rewrite E3. auto.
Qed.

Lemma ok_lay (ts : list nat) H ow p r lc (d q : nat → nat → Prop) R p' :
  NoDup ts → (∀ t, t ∈ ts → p t = PClosed) →
  (∀ j t u, ts !! j = Some t → d t u → p u = PLaid ∨ ∃ i, i < j ∧ ts !! i = Some u) →
  (∀ u, (u ∈ ts ∧ p' u = PLaid) ∨ (u ∉ ts ∧ p' u = p u)) →
  binv (B H ow p r lc d q R) → binv (B H ow p' r lc d q (R ++ [ts])).
Proof.
  intros Hnd Hc Hd Hp []; simpl in *. unfold laid in *; simpl in *.
  assert (Hl : concat (R ++ [ts]) = concat R ++ ts) by (rewrite concat_app; simpl; by rewrite app_nil_r).
  assert (Hnew : ∀ t, t ∈ ts → t ∉ concat R). { intros t Ht Hin%v_laid0. rewrite Hc in Hin; done. }
  assert (Hkeep : ∀ u, p u = PClosed ∨ p u = PLaid → p' u = PClosed ∨ p' u = PLaid).
  { intros u Hu. destruct (Hp u) as [[_ ->]|[_ ->]]; auto. }
  assert (Hnd' : NoDup (concat R ++ ts)).
  { apply NoDup_app. split_and!; [done| |done]. intros t Ht Hin. by apply (Hnew t). }
  assert (Hpre : ∀ t u, q t u → lb (concat R ++ ts) u t).
  { intros t u Hq Hin. apply elem_of_app in Hin as [Hin|Hin].
    - destruct (v_pre0 t u Hq) as (_&_&Hlb). destruct (Hlb Hin) as (i&j&Hi&Hj&?).
      exists i, j. split_and!; [by apply lookup_app_l_Some..|done].
    - apply elem_of_list_lookup in Hin as [j Hj]. revert t u Hq Hj.
      induction (lt_wf j) as [j _ IH]. intros t u Hq Hj.
      assert (Hdir : ∀ w, d t w → lb (concat R ++ ts) w t).
      { intros w Hw _. destruct (Hd j t w Hj Hw) as [Hlw|(i&Hi&Hiw)].
        - apply v_laid0, elem_of_list_lookup in Hlw as [i Hi]. exists i, (length (concat R) + j). split_and!.
          + by apply lookup_app_l_Some.
          + rewrite lookup_app_r by lia. by replace (length (concat R) + j - length (concat R)) with j by lia.
          + apply lookup_lt_Some in Hi. lia.
        - exists (length (concat R) + i), (length (concat R) + j). split_and!; [| |lia].
          + rewrite lookup_app_r by lia. by replace (length (concat R) + i - length (concat R)) with i by lia.
          + rewrite lookup_app_r by lia. by replace (length (concat R) + j - length (concat R)) with j by lia. }
      assert (Htin : t ∈ concat R ++ ts) by (apply elem_of_app; right; by eapply elem_of_list_lookup_2).
      destruct (v_pre0 t u Hq) as (_&[Hdu|(w&Hdw&Hqw)]&_); [by apply Hdir|].
      apply (lb_trans _ u w t Hnd'); [|by apply Hdir|done]. intros Hw.
      apply elem_of_app in Hw as [Hw|Hw].
      + destruct (v_pre0 w u Hqw) as (_&_&Hlb). destruct (Hlb Hw) as (i&k&Hi&Hk&?).
        exists i, k. split_and!; [by apply lookup_app_l_Some..|done].
      + destruct (Hd j t w Hj Hdw) as [Hlw|(i&Hi&Hiw)].
        * apply v_laid0 in Hlw. by destruct (Hnew w Hw).
        * by apply (IH i Hi w u). }
  constructor; simpl; unfold laid; simpl; rewrite ?Hl.
  - intros i Hi. destruct (Hp (ow i)) as [[_ ->]|[_ ->]]; [done|auto].
  - intros t. rewrite elem_of_app, v_laid0. destruct (Hp t) as [[? ->]|[? ->]]; [tauto|]. tauto.
  - done.
  - intros c t Ht. destruct (Hp t) as [[Hin _]|[_ ->]]; [|by eapply v_run0]. apply Hc in Hin. apply v_run0 in Ht. congruence.
  - intros a b Hab. destruct (v_dir0 a b Hab). split; [|by apply Hkeep]. destruct (Hp a) as [[_ ->]|[_ ->]]; done.
  - intros a b Hq. destruct (v_pre0 a b Hq) as (?&?&?). split_and!; [by apply Hkeep|done|by apply Hpre].
  - intros i j x y Hij Hx Hy Hxy. destruct (v_dep0 i j x y Hij Hx Hy Hxy) as [?|[?|[? ?]]]; [by left|right; by left|right; right].
    unfold laid; simpl. rewrite Hl. split; [apply elem_of_app; by left|by apply lb_app].
  - intros c i x Hx Hcx. specialize (v_str0 c i x Hx Hcx). destruct (r c).
    + destruct v_str0 as [?|[?|?]]; auto. right. right. rewrite elem_of_app. auto.
    + destruct v_str0 as [?|(l&?&?&?)]; [left; rewrite elem_of_app; auto|right]. exists l. auto.
Qed.

Lemma ok_commit x (M : nat → Prop) (id : nat) (E : nat → Prop) H (ow : nat → nat) p r lc (d q : nat → nat → Prop) R (ow' : nat → nat) (p' : nat → phase) r' (d' q' : nat → nat → Prop) :
    (∀ t, M t → p t = PRun) →
    (∀ t, r (str x) = Some t → M t) →
    (∀ i y, H !! i = Some y → rel y x → p (ow i) = PRun → M (ow i)) →
    (M id ∨ p id = PNone ∧ (∀ t, ¬ M t)) →
    (∀ u, E u → p u = PClosed) →
    (∀ i y, H !! i = Some y → rel y x → p (ow i) = PClosed → E (ow i)) →
    (∀ c, r (str x) = None → lc (str x) = Some c → p c = PClosed → E c) →
    (∀ i, i < length H → (M (ow i) ∧ ow' i = id) ∨ (¬ M (ow i) ∧ ow' i = ow i)) →
    ow' (length H) = id →
    (∀ t, (t = id ∧ p' t = PRun) ∨ (t ≠ id ∧ M t ∧ p' t = PNone) ∨ (t ≠ id ∧ ¬ M t ∧ p' t = p t)) →
    (∀ s, (s = str x ∧ r' s = Some id) ∨ (∃ t, r s = Some t ∧ M t ∧ r' s = Some id) ∨
          (s ≠ str x ∧ (∀ t, r s = Some t → ¬ M t) ∧ r' s = r s)) →
    (∀ t u, d' t u ↔ (t ≠ id ∧ ¬ M t ∧ d t u) ∨ (t = id ∧ ((∃ m, M m ∧ d m u) ∨ E u))) →
    (∀ t u, q' t u ↔ (t ≠ id ∧ ¬ M t ∧ q t u) ∨
        (t = id ∧ ((∃ m, M m ∧ q m u) ∨ ∃ w, E w ∧ (u = w ∨ q w u)))) →
    binv (B H ow p r lc d q R) → binv (B (H ++ [x]) ow' p' r' lc d' q' R).
Proof.
  intros HM Hrun Hrel Hid HE Hrelc Hlast Hown Hnew Hp Hr Hd Hq []; unfold laid in *; simpl in *.
  assert (Hidp : p id = PRun ∨ p id = PNone) by (destruct Hid as [?|[? _]]; auto).
  assert (HnM : ∀ t, p t = PClosed ∨ p t = PLaid → ¬ M t ∧ t ≠ id ∧ p' t = p t).
  { intros t Ht. assert (¬ M t) as HnM by (intros Hm%HM; destruct Ht; congruence).
    assert (t ≠ id) by (intros ->; destruct Hidp, Ht; congruence).
    destruct (Hp t) as [[? _]|[(_&?&_)|(_&_&?)]]; done. }
  assert (Hkeep : ∀ u, p u = PClosed ∨ p u = PLaid → p' u = PClosed ∨ p' u = PLaid).
  { intros u Hu. destruct (HnM u Hu) as (_&_&->). done. }
  assert (Hidl : id ∉ concat R) by (intros Hl%v_laid0; destruct Hidp; congruence).
  assert (Hstay : ∀ t u, p t = PClosed ∨ p t = PLaid → q t u → q' t u).
  { intros t u Ht Hqt. apply Hq. left. destruct (HnM t Ht) as (?&?&_). done. }
  assert (Hmove : ∀ m u, M m → q m u → q' id u) by (intros m u Hm Hqm; apply Hq; right; eauto).
  assert (Hsame : ∀ i u, i < length H → ow i = u → p u = PClosed ∨ p u = PLaid → ow' i = u).
  { intros i u Hi Hu Hpu. destruct (Hown i Hi) as [[Hm _]|[_ ->]]; [|done]. subst u. by destruct (HnM _ Hpu). }
  (* what was ordered stays ordered, under the new names *)
  assert (Hordq : ∀ i t, i < length H → q t (ow i) → ow' i = ow i).
  { intros i t Hi Hqt. apply (Hsame i _ Hi eq_refl). by destruct (v_pre0 _ _ Hqt). }
  assert (Hlaidow : ∀ i, i < length H → ow i ∈ concat R → ow' i = ow i).
  { intros i Hi Hl%v_laid0. apply (Hsame i _ Hi eq_refl). auto. }
  (* the stream of [x] *)
  assert (Hx : ∀ i y, H !! i = Some y → dep y x → ord (B (H ++ [x]) ow' p' r' lc d' q' R) (ow' i) id).
  { intros i y Hy Hdep. assert (i < length H) as Hi by by eapply lookup_lt_Some.
    unfold ord, laid. simpl. destruct Hdep as [Hs|Hrl].
    - specialize (v_str0 (str x) i y Hy Hs). destruct (r (str x)) as [t|] eqn:Ert.
      + pose proof (Hrun t eq_refl) as Hm. destruct v_str0 as [Ho|[Ho|Ho]].
        * left. destruct (Hown i Hi) as [[_ ->]|[Hn _]]; [done|]. by rewrite Ho in Hn.
        * right. left. rewrite (Hordq i t) by done. by eapply Hmove.
        * right. right. rewrite Hlaidow by done. split; [done|by apply lb_not].
      + destruct v_str0 as [Ho|(l&Hl&Hpl&Ho)].
        { right. right. rewrite Hlaidow by done. split; [done|by apply lb_not]. }
        destruct Hpl as [Hpl|Hpl].
        * pose proof (Hlast l eq_refl Hl Hpl) as HEl. right. left. apply Hq. right. split; [done|]. right. exists l.
          split; [done|]. destruct Ho as [Ho|Ho]; [left; apply (Hsame i l); auto|right]. by rewrite (Hordq i l).
        * right. right. assert (ow i ∈ concat R) as Hin.
          { destruct Ho as [->|Ho]; [by apply v_laid0|]. destruct (v_pre0 _ _ Ho) as (_&_&Hlb).
            destruct Hlb as (a&b&Ha&_&_); [by apply v_laid0|]. by eapply elem_of_list_lookup_2. }
          rewrite Hlaidow by done. split; [done|by apply lb_not].
    - destruct (p (ow i)) eqn:Epi.
      + by destruct (v_own0 i Hi).
      + left. destruct (Hown i Hi) as [[_ ->]|[Hn _]]; [done|]. by destruct Hn; eapply Hrel.
      + right. left. apply Hq. right. split; [done|]. right. exists (ow i). split; [by eapply Hrelc|]. left.
        apply (Hsame i); auto.
      + right. right. apply v_laid0 in Epi. rewrite Hlaidow by done. split; [done|by apply lb_not]. }
  constructor; unfold laid; simpl.
  - intros i. rewrite app_length. simpl. intros Hi.
    assert (i = length H ∨ i < length H) as [->|Hi'] by lia.
    + rewrite Hnew. destruct (Hp id) as [[_ ->]|[[? _]|[? _]]]; done.
    + destruct (Hown i Hi') as [[_ ->]|[Hn ->]].
      * destruct (Hp id) as [[_ ->]|[[? _]|[? _]]]; done.
      * destruct (Hp (ow i)) as [[_ ->]|[(_&?&_)|(_&_&->)]]; [done|done|auto].
  - intros t. rewrite v_laid0. destruct (Hp t) as [[-> ->]|[(_&Hm&->)|(_&_&->)]]; [|apply HM in Hm|done]; split; try done.
    + intros ?. destruct Hidp; congruence.
    + congruence.
  - done.
  - intros c t Ht. destruct (Hr c) as [[_ E']|[(t'&_&_&E')|(_&Hno&E')]]; rewrite E' in Ht.
    + injection Ht as <-. destruct (Hp id) as [[_ ->]|[[? _]|[? _]]]; done.
    + injection Ht as <-. destruct (Hp id) as [[_ ->]|[[? _]|[? _]]]; done.
    + destruct (Hp t) as [[_ ->]|[(_&Hm&_)|(_&_&->)]]; [done|by destruct (Hno t Ht)|by eapply v_run0].
  - intros t u [(Hti&HnMt&Hdt)|(->&Hdt)]%Hd.
    + destruct (v_dir0 t u Hdt). split; [|by apply Hkeep]. destruct (Hp t) as [[? _]|[(_&?&_)|(_&_&->)]]; done.
    + split; [destruct (Hp id) as [[_ ->]|[[? _]|[? _]]]; done|]. apply Hkeep.
      destruct Hdt as [(m&_&Hdm)|HEu]; [by destruct (v_dir0 m u Hdm)|left; auto].
  - intros t u [(Hti&HnMt&Hqt)|(->&Hqt)]%Hq.
    + destruct (v_pre0 t u Hqt) as (?&Hder&?). split_and!; [by apply Hkeep| |done].
      destruct Hder as [Hdt|(w&Hdw&Hqw)]; [left; apply Hd; auto|right]. exists w. split; [apply Hd; auto|].
      apply Hstay; [by destruct (v_dir0 t w Hdw)|done].
    + destruct Hqt as [(m&Hm&Hqm)|(w&HEw&Hw)].
      * destruct (v_pre0 m u Hqm) as (?&Hder&?). split_and!; [by apply Hkeep| |by apply lb_not].
        destruct Hder as [Hdt|(w&Hdw&Hqw)]; [left; apply Hd; eauto 6|right]. exists w. split; [apply Hd; eauto 6|].
        apply Hstay; [by destruct (v_dir0 m w Hdw)|done].
      * split_and!; [| |by apply lb_not].
        -- apply Hkeep. destruct Hw as [->|Hqw]; [auto|by destruct (v_pre0 w u Hqw)].
        -- destruct Hw as [->|Hqw]; [left; apply Hd; auto|right]. exists w. split; [apply Hd; auto|]. apply Hstay; auto.
  - intros i j y z Hij Hy Hz Hdep. apply lookup_app_Some in Hz as [Hz|[Hlen Hz]].
    + assert (j < length H) as Hj by by eapply lookup_lt_Some. assert (i < length H) as Hi by lia.
      rewrite lookup_app_l in Hy by done. unfold ord, laid; simpl.
      destruct (v_dep0 i j y z Hij Hy Hz Hdep) as [Ho|[Ho|[Ho1 Ho2]]].
      * left. destruct (Hown i Hi) as [[Hm ->]|[Hm ->]], (Hown j Hj) as [[Hm' ->]|[Hm' ->]]; try done; rewrite Ho in Hm; done.
      * right. left. rewrite (Hordq i _ Hi Ho). destruct (Hown j Hj) as [[Hm ->]|[Hm ->]]; [by eapply Hmove|].
        apply Hq. left. split_and!; [|done|done]. intros Eid. destruct Hid as [?|[Hn _]]; [by rewrite Eid in Hm|].
        destruct (v_own0 j Hj). by rewrite Eid.
      * right. right. rewrite Hlaidow by done. split; [done|].
        destruct (Hown j Hj) as [[Hm ->]|[Hm ->]]; [by apply lb_not|done].
    + apply list_lookup_singleton_Some in Hz as [Hj <-]. assert (j = length H) as -> by lia.
      rewrite lookup_app_l in Hy by lia. rewrite Hnew. by eapply Hx.
  - intros c i y Hy Hc. apply lookup_app_Some in Hy as [Hy|[Hlen Hy]].
    + assert (i < length H) as Hi by by eapply lookup_lt_Some. pose proof (v_str0 c i y Hy Hc) as Hs.
      destruct (Hr c) as [[-> E']|[(t&Hrt&Hm&E')|(Hne&Hno&E')]]; rewrite E'.
      * destruct (Hx i y Hy) as [?|[?|[? _]]]; [by left|auto..].
      * rewrite Hrt in Hs. destruct Hs as [Ho|[Ho|Ho]].
        -- left. destruct (Hown i Hi) as [[_ ->]|[Hn _]]; [done|]. by rewrite Ho in Hn.
        -- right. left. rewrite (Hordq i t) by done. by eapply Hmove.
        -- right. right. by rewrite Hlaidow.
      * destruct (r c) as [t|] eqn:Er.
        -- assert (t ≠ id).
           { intros ->. apply v_run0 in Er as Hpt. destruct Hid as [Hm|[Hn _]]; [by apply (Hno id)|congruence]. }
           assert (¬ M t) by by apply Hno. destruct Hs as [Ho|[Ho|Ho]].
           ++ left. destruct (Hown i Hi) as [[Hm _]|[_ ->]]; [by rewrite Ho in Hm|done].
           ++ right. left. rewrite (Hordq i t) by done. apply Hq. auto.
           ++ right. right. by rewrite Hlaidow.
        -- destruct Hs as [Ho|(l&Hl&Hpl&Ho)]; [left; by rewrite Hlaidow|right]. exists l.
           split_and!; [done|by apply Hkeep|]. destruct Ho as [Ho|Ho]; [left; by apply (Hsame i l)|right].
           rewrite (Hordq i l) by done. by apply Hstay.
    + apply list_lookup_singleton_Some in Hy as [Hj <-]. assert (i = length H) as -> by lia.
      destruct (Hr c) as [[_ E']|[(t&_&_&E')|(Hne&_&E')]]; rewrite ?E'; [by left|by left|done].
Qed.

Inductive bsteps : bst → bst → Prop :=
| bs_nil s : bsteps s s
| bs_cons s1 s2 s3 : bstep s1 s2 → bsteps s2 s3 → bsteps s1 s3.
Definition binit (s : bst) : Prop :=
  s = B [] (λ _, 0) (λ _, PNone) (λ _, None) (λ _, None) (λ _ _, False) (λ _ _, False) [].
Lemma binit_inv s : binit s → binv s.
Proof.
  intros ->. constructor; unfold laid; simpl; try done; try (intros; lia).
  - intros t. split; [by intros ?%elem_of_nil|done].
  - constructor.
Qed.
Lemma reach_inv s s' : binit s → bsteps s s' → binv s'.
Proof.
  intros Hi Hs. assert (binv s) as Hv by by apply binit_inv. clear Hi.
  induction Hs as [|s1 s2 s3 H1 H2 IH]; [done|]. apply IH. destruct H1.
  - by eapply ok_commit.
  - by eapply ok_close.
  - by eapply ok_lay.
Qed.

(** Runs whose records hold transactions in the order in which they closed, with that order. *)
Inductive orderly : bst → list nat → Prop :=
| o_init s : binit s → orderly s []
| o_commit s s' q x : orderly s q → bstep s s' → hist s' = hist s ++ [x] → orderly s' q
| o_close s s' q t : orderly s q → bstep s s' → hist s' = hist s → ph s t = PRun → ph s' t = PClosed → orderly s' (q ++ [t])
| o_lay s s' q ts : orderly s q → bstep s s' → recs s' = recs s ++ [ts] → ts `sublist_of` q → orderly s' q.
Lemma bs_snoc s1 s2 s3 : bsteps s1 s2 → bstep s2 s3 → bsteps s1 s3.
Proof. induction 1; intros; econstructor; eauto; constructor. Qed.
Lemma orderly_steps s s' q : binit s → orderly s' q → bsteps s s'.
Proof.
  intros Hi. induction 1 as [s' Hi'| | |]; [|by eapply bs_snoc..]. red in Hi, Hi'. subst. constructor.
Qed.

(** Operation [i] is in the first [k] records. *)
Definition survives_in (s : bst) (k i : nat) : Prop := i < length (hist s) ∧ own s i ∈ concat (take k (recs s)).

(** Every prefix of the records is closed under what an operation follows: its stream's
    earlier operations, and those that it relates to, of whatever stream. *)
Theorem prefix_closed s s' k i j x y :
  binit s → bsteps s s' → i < j → hist s' !! i = Some x → hist s' !! j = Some y → dep x y →
  survives_in s' k j → survives_in s' k i.
Proof.
  intros Hi Hs Hij Hx Hy Hd [_ Hj]. pose proof (reach_inv _ _ Hi Hs) as [].
  split; [by eapply lookup_lt_Some|].
  assert (Hl : laid s' = concat (take k (recs s')) ++ concat (drop k (recs s'))).
  { unfold laid. by rewrite <-concat_app, take_drop. }
  assert (Hlb : lb (laid s') (own s' i) (own s' j) → own s' i ∈ concat (take k (recs s'))).
  { intros Hlb. destruct Hlb as (a&b&Ha&Hb&Hab); [rewrite Hl; apply elem_of_app; by left|].
    apply elem_of_list_lookup in Hj as [b' Hb'].
    assert (laid s' !! b' = Some (own s' j)) as Hb2 by (rewrite Hl; by apply lookup_app_l_Some).
    assert (b' = b) as -> by by eapply NoDup_lookup.
    apply lookup_lt_Some in Hb'. rewrite Hl, lookup_app_l in Ha by lia. by eapply elem_of_list_lookup_2. }
  destruct (v_dep0 i j x y Hij Hx Hy Hd) as [->|[Hq|[_ Hlb']]]; [done| |by apply Hlb].
  apply Hlb. by destruct (v_pre0 _ _ Hq) as (_&_&?).
Qed.
(** So each stream survives as a prefix of its operations ... *)
Theorem stream_prefix s s' k c i j x y :
  binit s → bsteps s s' → i < j → hist s' !! i = Some x → hist s' !! j = Some y →
  str x = c → str y = c → survives_in s' k j → survives_in s' k i.
Proof. intros ????? Hx Hy. eapply prefix_closed; [done..|]. left. by rewrite Hx, Hy. Qed.
(** ... that contains everything that an earlier prefix had: what was acknowledged. *)
Theorem acknowledged_survives s k a i : a ≤ k → survives_in s a i → survives_in s k i.
Proof.
  intros Ha [Hi Ho]. split; [done|]. rewrite <-(take_drop a (take k (recs s))), take_take.
  replace (a `min` k) with a by lia. rewrite concat_app. apply elem_of_app. by left.
Qed.
(** Transactions survive whole: merged streams as one. *)
Theorem merged_as_one s k i j :
  i < length (hist s) → own s i = own s j → survives_in s k j → survives_in s k i.
Proof. intros Hi E [_ Hj]. split; [done|]. by rewrite E. Qed.
(** Operations that follow one another are laid in the order of their commits. *)
Theorem log_order s s' i j x y :
  binit s → bsteps s s' → i < j → hist s' !! i = Some x → hist s' !! j = Some y → dep x y →
  own s' j ∈ laid s' → own s' i = own s' j ∨
  ∃ a b, laid s' !! a = Some (own s' i) ∧ laid s' !! b = Some (own s' j) ∧ a < b.
Proof.
  intros Hi Hs Hij Hx Hy Hd Hj. pose proof (reach_inv _ _ Hi Hs) as [].
  destruct (v_dep0 i j x y Hij Hx Hy Hd) as [->|[Hq|[_ Hlb]]]; [by left|right|right; by apply Hlb].
  destruct (v_pre0 _ _ Hq) as (_&_&Hlb). by apply Hlb.
Qed.
End streams.
