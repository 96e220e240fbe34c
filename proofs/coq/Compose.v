(** The journal, its streams and the contents of blocks as one transition system, what it
    promises, and the theorem that it keeps it: each stream recovers a prefix of its
    operations that contains everything acknowledged, merged streams as one. *)
From stdpp Require Import prelude functions list sorting.
From Steadfast Require Import Disk Replay Journal Inv Recovery Run Steps1 Steps2 Steps3 Refine Streams Absorb Commute.

Section compose.
Context {addr : Type} `{!EqDecision addr} {off byte : Type} (zero : byte).
Context (N : nat) (d0 : addr → option (off → byte)).
Context {op stream : Type} `{!EqDecision stream} (str : op → stream) (rel : op → op → Prop).
(** What an operation does to each block. *)
Context (fx : op → addr → eff off byte).
(** The rule for clients: what one stream does to the bytes of another's operation relates to
    it; otherwise the two are independent. *)
Notation dep := (dep str rel).
Hypothesis relates : ∀ x y, dep x y ∨ ∀ b, indep (fx x b) (fx y b).
Notation cont := (off → byte).
Notation eff := (eff off byte).
Notation rec := (@rec addr off byte).
Notation st := (@st addr off byte).
Notation bst := (@bst op stream).
Notation acked := Journal.lb (only parsing).

(** ** The system *)
Record cst := C {
  jn : st;           (** the journal and its disk *)
  sm : bst;          (** the streams since the last opening *)
  kept : list op;    (** operations that survive of earlier mounts, in the order of commits *)
  nb : nat }.        (** the records that hold them *)

Definition fxs (b : addr) (l : list op) : list eff := (λ x, fx x b) <$> l.
(** A transaction's operations, in the order of commits. *)
Definition ops_of (S : bst) (t : nat) : list op := sel (mask (length (hist S)) (λ i, own S i = t)) (hist S).
(** When a record is laid, the journal decides whether a free needs a revoke, and whether
    covered data is hashed or flushed beforehand. *)
Definition laid_as (e e' : eff) : Prop :=
  match e, e' with
  | EFree _, EFree _ => True
  | ECover _ c fr, ECover _ c' fr' => c' = c ∧ fr' = fr
  | _, _ => e' = e
  end.
(** The record [r] of the transactions [ts] carries one effect for each block. *)
Definition carries (S : bst) (r : rec) (ts : list nat) : Prop :=
  ∀ b, ∃ e, absorbs (fxs b (concat (ops_of S <$> ts))) = Some e ∧ laid_as e (r_eff r b).
(** Operations that are in no record yet. *)
Definition unlaid (S : bst) : list op := sel (mask (length (hist S)) (λ i, own S i ∉ laid S)) (hist S).
Definition empty : bst := B [] (λ _, 0) (λ _, PNone) (λ _, None) (λ _, None) (λ _ _, False) (λ _ _, False) [].
(** A cut takes all that was in memory only; what was committed, and by which transaction, is
    what the specification speaks of. *)
Definition lost (S : bst) : bst :=
  B (hist S) (own S) (λ _, PNone) (λ _, None) (λ _, None) (λ _ _, False) (λ _ _, False) (recs S).

#[local] Instance phase_dec : EqDecision phase.
Proof. solve_decision. Defined.
(** Operations, as marks on [kept ++ hist]: those in the first [k] records, and those that can
    merge with nothing any more. *)
Definition in_records (S : bst) (K : list op) (n k : nat) : list bool :=
  replicate (length K) true ++ mask (length (hist S)) (λ i, own S i ∈ concat (take (k - n) (recs S))).
Definition closed (S : bst) (K : list op) : list bool :=
  replicate (length K) true ++ mask (length (hist S)) (λ i, ph S (own S i) ≠ PRun).

Inductive clabel :=
  | CTau | CCommit (x : op)
  | CClose (m : list bool)  (** closed by now *)
  | CAck (m : list bool)    (** acknowledged by now *)
  | CRead (b : addr) (c : cont) | CCrash
  | COpen (m : list bool).  (** what has survived *)

Inductive cstep : clabel → cst → cst → Prop :=
| k_journal J J' S K n :
    step zero N d0 Tau J J' → cstep CTau (C J S K n) (C J' S K n)
| k_commit x J v S S' K n :
    md J = Run v → bstep str rel S S' → hist S' = hist S ++ [x] →
    cstep (CCommit x) (C J S K n) (C J S' K n)
| k_close J v S S' K n :
    md J = Run v → bstep str rel S S' → hist S' = hist S → recs S' = recs S →
    cstep (CClose (closed S' K)) (C J S K n) (C J S' K n)
| k_lay r ts J J' S S' K n :
    step zero N d0 (Lay r) J J' → bstep str rel S S' → recs S' = recs S ++ [ts] → carries S r ts →
    cstep CTau (C J S K n) (C J' S' K n)
| k_ack J J' S K n :
    step zero N d0 Ack J J' → cstep (CAck (in_records S K n (acked J'))) (C J S K n) (C J' S K n)
(* the current image: what the records lead to, from home or cached, and what is in none yet *)
| k_read b c c' J J' S K n :
    step zero N d0 (Read b c) J J' → lfold zero (Some c) (fxs b (unlaid S)) = Some c' →
    cstep (CRead b c') (C J S K n) (C J' S K n)
| k_read_new b c' J v S K n :
    md J = Run v → stt v b ≠ Used → lfold zero None (fxs b (unlaid S)) = Some c' →
    cstep (CRead b c') (C J S K n) (C J S K n)
| k_crash J J' S K n :
    step zero N d0 Crash J J' → cstep CCrash (C J S K n) (C J' (lost S) K n)
| k_open k J J' S K n :
    step zero N d0 (Open k) J J' →
    cstep (COpen (in_records S K n k)) (C J S K n) (C J' empty (sel (in_records S K n k) (K ++ hist S)) k).

Inductive csteps : list clabel → cst → cst → Prop :=
| cs_nil s : csteps [] s s
| cs_cons l ls s1 s2 s3 : cstep l s1 s2 → csteps ls s2 s3 → csteps (l :: ls) s1 s3.
Definition cinit (s : cst) : Prop := ∃ J, init zero d0 J ∧ s = C J empty [] 0.

(** ** The specification: a list of committed operations *)
Record sst := Sp {
  ops : list op;
  tied : nat → nat → Prop;   (** survive together or not at all *)
  shut : list bool;          (** closed: later ones are not tied to them *)
  safe : list bool }.        (** acknowledged *)
Definition content (l : list op) (b : addr) : option cont := lfold zero (d0 b) (fxs b l).
(** What a cut may leave, or an acknowledgement promise. *)
Record cutset (t : sst) (m : list bool) : Prop := {
  cut_len : length m = length (ops t);
  cut_dep : ∀ i j x y, i < j → ops t !! i = Some x → ops t !! j = Some y → dep x y → marked m j → marked m i;
  cut_tied : ∀ i j, tied t i j → marked m i ↔ marked m j;
  cut_safe : ∀ i, marked (safe t) i → marked m i }.

Inductive sstep : clabel → sst → sst → Prop :=
| x_tau t : sstep CTau t t
| x_crash t : sstep CCrash t t
| x_commit x O T c a :
    sstep (CCommit x) (Sp O T c a)
      (Sp (O ++ [x]) (λ i j, T i j ∨ j = length O ∧ ¬ marked c i ∧ ∃ y, O !! i = Some y ∧ dep y x) c a)
| x_close m O T c a :
    length m = length O → (∀ i, marked c i → marked m i) → sstep (CClose m) (Sp O T c a) (Sp O T m a)
| x_ack m O T c a :
    cutset (Sp O T c a) m → sstep (CAck m) (Sp O T c a) (Sp O T c m)
| x_read b c' t :
    ceq (content (ops t) b) (Some c') → sstep (CRead b c') t t
| x_open m t :
    cutset t m →
    sstep (COpen m) t (let O := sel m (ops t) in
      Sp O (λ _ _, False) (replicate (length O) true) (replicate (length O) true)).
Inductive ssteps : list clabel → sst → sst → Prop :=
| ss_nil t : ssteps [] t t
| ss_cons l ls t1 t2 t3 : sstep l t1 t2 → ssteps ls t2 t3 → ssteps (l :: ls) t1 t3.
Definition sinit : sst := Sp [] (λ _ _, False) [] [].

(** ** Streams: what one step changes *)
Lemma bstep_inv S S' : binv str rel S → bstep str rel S S' → binv str rel S'.
Proof. intros Hv Hs. destruct Hs; [by eapply ok_commit|by eapply ok_close|by eapply ok_lay]. Qed.
Lemma snoc_not {A} (l : list A) x : l ++ [x] ≠ l.
Proof. intros E%(f_equal length). rewrite app_length in E. simpl in E. lia. Qed.

(** A commit leaves transactions that are laid alone ... *)
Lemma commit_laid S S' x : binv str rel S → bstep str rel S S' → hist S' = hist S ++ [x] →
  recs S' = recs S ∧ (own S' (length (hist S)) ∉ laid S) ∧
  ∀ i t, i < length (hist S) → t ∈ laid S → own S' i = t ↔ own S i = t.
Proof.
  intros [] Hs E. destruct Hs as [x' M id E' H ow p r lc d q R HM Hrun Hrel Hid HE Hrelc Hlast ow' p' r' d' q' Hown Hnew Hp Hr Hd Hq
    |t H ow p r lc d q R p' r' lc'|ts H ow p r lc d q R p']; simpl in *;
    [|symmetry in E; by apply snoc_not in E..].
  unfold laid in *; simpl in *. split; [done|].
  assert (Hidl : id ∉ concat R) by (intros Hl%v_laid; destruct Hid as [?%HM|[? _]]; congruence).
  rewrite Hnew. split; [done|]. intros i t Hi Ht. destruct (Hown i Hi) as [[Hm ->]|[_ ->]]; [|done].
  split; intros <-; [done|]. apply HM in Hm. apply v_laid in Ht. congruence.
Qed.
(** ... keeps together what was together, and ties the operation to what it depends on. *)
Lemma commit_tied S S' x : binv str rel S → bstep str rel S S' → hist S' = hist S ++ [x] →
  (∀ i j, i < length (hist S) → j < length (hist S) → own S i = own S j → own S' i = own S' j) ∧
  (∀ i, i < length (hist S) → ph S' (own S' i) = PRun ↔ ph S (own S i) = PRun) ∧
  ph S' (own S' (length (hist S))) = PRun ∧
  (∀ i y, hist S !! i = Some y → dep y x → ph S (own S i) = PRun → own S' i = own S' (length (hist S))).
Proof.
  intros [] Hs E. destruct Hs as [x' M id E' H ow p r lc d q R HM Hrun Hrel Hid HE Hrelc Hlast ow' p' r' d' q' Hown Hnew Hp Hr Hd Hq
    |t H ow p r lc d q R p' r' lc'|ts H ow p r lc d q R p']; simpl in *;
    [|symmetry in E; by apply snoc_not in E..].
  apply app_inv_head in E as [= ->].
  assert (Hid' : p' id = PRun) by (by destruct (Hp id) as [[_ ?]|[[? _]|[? _]]]). split_and!.
  - intros i j Hi Hj Ho. destruct (Hown i Hi) as [[Hm ->]|[Hm ->]], (Hown j Hj) as [[Hm' ->]|[Hm' ->]]; try done; rewrite Ho in Hm; done.
  - intros i Hi. destruct (Hown i Hi) as [[Hm ->]|[Hm ->]]; [split; [auto|done]|].
    destruct (Hp (ow i)) as [[Eid ->]|[(_&?&_)|(_&_&->)]]; [|done..]. split; [|done]. intros _.
    destruct Hid as [?|[Hn _]]; [by rewrite Eid in Hm|]. destruct (v_own i Hi). by rewrite Eid.
  - by rewrite Hnew.
  - intros i y Hy Hdep Hpi. rewrite Hnew. assert (i < length H) as Hi by by eapply lookup_lt_Some.
    assert (M (ow i)); [|by destruct (Hown i Hi) as [[_ ?]|[? _]]].
    destruct Hdep as [Hst|?]; [|by eapply Hrel]. specialize (v_str _ i y Hy Hst).
    assert (ow i ∉ laid (B H ow p r lc d q R)) as Hnl by (intros Hl%v_laid; congruence).
    assert (∀ t, ¬ q t (ow i)) as Hnq by (intros t Hqt; destruct (v_pre _ _ Hqt) as [[?|?] _]; congruence).
    destruct (r (str x)) as [t|] eqn:Er.
    + destruct v_str as [->|[Hqt|?]]; [by apply Hrun|by destruct (Hnq t)|done].
    + destruct v_str as [?|(l&_&Hl&[Ho|Hql])]; [done|destruct Hl; congruence|by destruct (Hnq l)].
Qed.
Lemma close_keeps S S' : bstep str rel S S' → hist S' = hist S → recs S' = recs S →
  own S' = own S ∧ ∀ u, ph S u ≠ PRun → ph S' u ≠ PRun.
Proof.
  intros Hs E1 E2. destruct Hs as [|t H ow p r lc d q R p' r' lc' Ht Hp|]; simpl in *; [by apply snoc_not in E1| |by apply snoc_not in E2].
  split; [done|]. intros u Hu. destruct (Hp u) as [[_ ->]|[_ ->]]; done.
Qed.
Lemma lay_keeps S S' ts : bstep str rel S S' → recs S' = recs S ++ [ts] →
  hist S' = hist S ∧ own S' = own S ∧ ∀ u, ph S' u = PRun ↔ ph S u = PRun.
Proof.
  intros Hs E. destruct Hs as [| |ts' H ow p r lc d q R p' Hnd Hc Hd Hp]; simpl in *; [symmetry in E; by apply snoc_not in E..|].
  split_and!; [done..|]. intros u. destruct (Hp u) as [[Hu ->]|[_ ->]]; [|done]. by rewrite Hc.
Qed.

(** ** Operations, by their places *)
Definition eff_at (b : addr) (h : list op) (i : nat) : eff := match h !! i with Some x => fx x b | None => ENone end.
Lemma fxs_sel b h P `{∀ i, Decision (P i)} :
  fxs b (sel (mask (length h) P) h) = eff_at b h <$> filter P (seq 0 (length h)).
Proof.
  rewrite sel_mask. assert (Hlt : Forall (λ i, i < length h) (filter P (seq 0 (length h)))).
  { apply Forall_forall. intros i [_ Hi%elem_of_seq]%elem_of_list_filter. lia. }
  induction Hlt as [|i l Hi _ IH]; [done|]. destruct (lookup_lt_is_Some_2 h i Hi) as [x Hx]. csimpl.
  rewrite Hx. simpl. unfold eff_at at 1. rewrite Hx. by f_equal.
Qed.
Lemma fxs_all b h : fxs b h = eff_at b h <$> seq 0 (length h).
Proof.
  apply list_eq. intros i. unfold fxs. rewrite !list_lookup_fmap. destruct (decide (i < length h)) as [Hi|Hi].
  - rewrite lookup_seq_lt by done. simpl. unfold eff_at. by destruct (lookup_lt_is_Some_2 h i Hi) as [x ->].
  - rewrite lookup_seq_ge, lookup_ge_None_2 by lia. done.
Qed.
Lemma fxs_in_order b S T :
  fxs b (concat (ops_of S <$> T)) = eff_at b (hist S) <$> in_order (own S) (length (hist S)) T.
Proof.
  unfold in_order. induction T as [|t T IH]; [done|]. csimpl. unfold fxs in *. rewrite !fmap_app, <-IH. f_equal. apply fxs_sel.
Qed.

(** The history: each transaction is laid once, and dependent operations in the order of
    their commits. *)
Record logged (S : bst) : Prop := {
  l_nodup : NoDup (laid S);
  l_ord : ∀ i j x y, i < j → hist S !! i = Some x → hist S !! j = Some y → dep x y → own S j ∈ laid S →
    own S i = own S j ∨ ∃ a c, laid S !! a = Some (own S i) ∧ laid S !! c = Some (own S j) ∧ a < c }.
Lemma binv_logged S : binv str rel S → logged S.
Proof.
  intros []. constructor; [done|]. intros i j x y Hij Hx Hy Hd Hj.
  destruct (v_dep i j x y Hij Hx Hy Hd) as [->|[Hq|[_ Hlb]]]; [by left|right|right; by apply Hlb].
  destruct (v_pre _ _ Hq) as (_&_&Hlb). by apply Hlb.
Qed.
Lemma logged_lost S : logged S → logged (lost S).
Proof. by intros []. Qed.
Lemma logged_empty : logged empty.
Proof. constructor; [constructor|]. by intros i j x y _ ?. Qed.
Lemma laid_split (S : bst) k : laid S = concat (take k (recs S)) ++ concat (drop k (recs S)).
Proof. unfold laid. by rewrite <-concat_app, take_drop. Qed.
Lemma elem_laid (S : bst) k t : t ∈ concat (take k (recs S)) → t ∈ laid S.
Proof. intros. rewrite (laid_split S k). apply elem_of_app. by left. Qed.
(** With an operation, a prefix of the records has what it depends on. *)
Lemma prefix_dep S k i j x y : logged S → i < j → hist S !! i = Some x → hist S !! j = Some y → dep x y →
  own S j ∈ concat (take k (recs S)) → own S i ∈ concat (take k (recs S)).
Proof.
  intros [] Hij Hx Hy Hd Hj. destruct (l_ord0 i j x y Hij Hx Hy Hd (elem_laid _ _ _ Hj)) as [->|(a&c&Ha&Hc&Hac)]; [done|].
  apply elem_of_list_lookup in Hj as [c' Hc'].
  assert (laid S !! c' = Some (own S j)) as Hc2 by (rewrite (laid_split S k); by apply lookup_app_l_Some).
  assert (c' = c) as -> by by eapply NoDup_lookup.
  apply lookup_lt_Some in Hc'. rewrite (laid_split S k), lookup_app_l in Ha by lia. by eapply elem_of_list_lookup_2.
Qed.
Lemma at_indep b (S : bst) i j : ¬ (∃ x y, hist S !! i = Some x ∧ hist S !! j = Some y ∧ dep x y) →
  indep (eff_at b (hist S) i) (eff_at b (hist S) j).
Proof.
  intros Hn. unfold eff_at. destruct (hist S !! i) as [x|] eqn:Ex; [|done].
  destruct (hist S !! j) as [y|] eqn:Ey; [|by destruct (fx x b) as [|[]| |]].
  destruct (relates x y) as [?|?]; [|done]. destruct Hn. eauto.
Qed.
(** In log order, only independent operations stand before earlier ones. *)
Lemma log_sorted b S k : logged S →
  StronglySorted (λ a c, c < a → indep (eff_at b (hist S) c) (eff_at b (hist S) a))
    (in_order (own S) (length (hist S)) (concat (take k (recs S)))).
Proof.
  intros Hl. apply ssorted_in_order; [lia|]. intros p q a c Hpq Hp Hq Hac. apply at_indep. intros (x&y&Hx&Hy&Hd).
  destruct Hl.
  assert (laid S !! p = Some (own S a)) as Hp' by (rewrite (laid_split S k); by apply lookup_app_l_Some).
  assert (laid S !! q = Some (own S c)) as Hq' by (rewrite (laid_split S k); by apply lookup_app_l_Some).
  destruct (l_ord0 c a x y Hac Hx Hy Hd) as [E|(u&v&Hu&Hv&Huv)].
  - by eapply elem_of_list_lookup_2.
  - rewrite E in Hq'. assert (p = q) by by eapply NoDup_lookup. lia.
  - assert (u = q) by by eapply NoDup_lookup. assert (v = p) by by eapply NoDup_lookup. lia.
Qed.
(** Of the operations of a prefix of the records, log order and the order of commits lead to
    the same contents ... *)
Lemma log_order_commits b S k x : logged S →
  ceq (lfold zero x (fxs b (concat (ops_of S <$> concat (take k (recs S))))))
    (lfold zero x (fxs b (sel (mask (length (hist S)) (λ i, own S i ∈ concat (take k (recs S)))) (hist S)))).
Proof.
  intros Hl. rewrite fxs_in_order, fxs_sel. apply contents_any_order; [|apply ssorted_filter, ssorted_seq|by apply log_sorted].
  assert (NoDup (concat (take k (recs S)))) as Hnd.
  { destruct Hl as [Hnd _]. rewrite (laid_split S k) in Hnd. by apply NoDup_app in Hnd as [? _]. }
  apply NoDup_Permutation; [by apply NoDup_in_order|apply NoDup_filter, NoDup_seq|].
  intros i. rewrite elem_in_order, elem_of_list_filter, elem_of_seq. intuition lia.
Qed.
Lemma all_sorted b S : logged S →
  StronglySorted (λ a c, c < a → indep (eff_at b (hist S) c) (eff_at b (hist S) a))
    (in_order (own S) (length (hist S)) (laid S) ++ filter (λ i, own S i ∉ laid S) (seq 0 (length (hist S)))).
Proof.
  intros Hl. assert (laid S = concat (take (length (recs S)) (recs S))) as E by (by rewrite firstn_all). apply ssorted_app.
  - rewrite E. by apply log_sorted.
  - eapply ssorted_imp; [|apply ssorted_filter, ssorted_seq]. simpl. lia.
  - intros a c [_ Ha]%elem_in_order [Hc _]%elem_of_list_filter Hac. apply at_indep. intros (y&z&Hy&Hz&Hd).
    apply Hc. rewrite E in Ha |- *. by eapply prefix_dep.
Qed.
(** ... and so they do with what is in no record yet on top. *)
Lemma unlaid_on_top b S x : logged S →
  ceq (lfold zero x (fxs b (concat (ops_of S <$> laid S)) ++ fxs b (unlaid S))) (lfold zero x (fxs b (hist S))).
Proof.
  intros Hl. unfold unlaid. rewrite fxs_in_order, fxs_sel, fxs_all, <-fmap_app.
  apply contents_any_order; [|apply ssorted_seq|by apply all_sorted]. apply NoDup_Permutation; [|apply NoDup_seq|].
  - apply NoDup_app. split_and!; [apply NoDup_in_order, Hl| |apply NoDup_filter, NoDup_seq].
    intros i [_ Hi]%elem_in_order [? _]%elem_of_list_filter. done.
  - intros i. rewrite elem_of_app, elem_in_order, elem_of_list_filter, elem_of_seq.
    destruct (decide (own S i ∈ laid S)); intuition lia.
Qed.

(** ** The invariant *)
Notation L := (L zero d0).
Record CI (s : cst) : Prop := {
  c_mi : MI zero N d0 (jn s);
  c_lb : nb s ≤ acked (jn s) ≤ length (rs (jn s));
  c_len : length (rs (jn s)) = nb s + length (recs (sm s));
  c_eff : Forall2 (carries (sm s)) (drop (nb s) (rs (jn s))) (recs (sm s));
  c_base : ∀ b, ceq (L (rs (jn s)) (nb s) b) (content (kept s) b);
  c_log : logged (sm s);
  c_run : ∀ v, md (jn s) = Run v → binv str rel (sm s) }.
(** The specification's state. *)
Definition all_ops (s : cst) : list op := kept s ++ hist (sm s).
Record sim (s : cst) (t : sst) : Prop := {
  m_ops : ops t = all_ops s;
  m_tied : ∀ i j, tied t i j → ∃ i' j', i = length (kept s) + i' ∧ j = length (kept s) + j' ∧
    i' < length (hist (sm s)) ∧ j' < length (hist (sm s)) ∧ own (sm s) i' = own (sm s) j';
  m_shut : ∀ v, md (jn s) = Run v → ∀ i, marked (shut t) i ↔ marked (closed (sm s) (kept s)) i;
  m_safe : ∀ i, marked (safe t) i → marked (in_records (sm s) (kept s) (nb s) (acked (jn s))) i }.

Lemma lstep_laid_as e e' x : laid_as e e' → lstep zero x e' = lstep zero x e.
Proof. destruct e as [|z p|rv|chk c fr], e' as [|z' p'|rv'|chk' c' fr']; simpl; try done; [by intros [= -> ->]|by intros [-> ->]]. Qed.
Lemma records_content S R T b x : Forall2 (carries S) R T →
  ceq (lfold zero x (es R b)) (lfold zero x (fxs b (concat (ops_of S <$> concat T)))).
Proof.
  intros HF. revert x. induction HF as [|r ts R T H1 H2 IH]; intros x; csimpl; [apply ceq_refl|].
  rewrite fmap_app, concat_app. unfold fxs. rewrite fmap_app, lfold_app. eapply ceq_trans; [|apply IH].
  apply lfold_ceq. destruct (H1 b) as (e&He&Hl). rewrite (lstep_laid_as _ _ _ Hl). by apply absorbs_ok.
Qed.
(** What a prefix of the records leads to is what its operations lead to, in the order of
    their commits. *)
Lemma content_at s k b : CI s → nb s ≤ k → k ≤ length (rs (jn s)) →
  ceq (L (rs (jn s)) k b) (content (sel (in_records (sm s) (kept s) (nb s) k) (all_ops s)) b).
Proof.
  intros [] Hk1 Hk2. unfold in_records, all_ops, content. rewrite sel_all_app. unfold fxs. rewrite fmap_app, lfold_app.
  assert (take k (rs (jn s)) = take (nb s) (rs (jn s)) ++ take (k - nb s) (drop (nb s) (rs (jn s)))) as E.
  { rewrite take_drop_commute. replace (nb s + (k - nb s)) with k by lia.
    rewrite <-(take_drop (nb s) (take k (rs (jn s)))) at 1. rewrite take_take. by replace (nb s `min` k) with (nb s) by lia. }
  unfold Journal.L, es at 1. rewrite E, fmap_app, lfold_app. eapply ceq_trans; [apply lfold_ceq, c_base0|].
  eapply ceq_trans; [|by apply log_order_commits]. apply records_content. by apply Forall2_take.
Qed.
(** ... and with the operations that are in none yet, what all lead to. *)
Lemma current_content s b x : CI s → ceq (L (rs (jn s)) (length (rs (jn s))) b) x →
  ceq (lfold zero x (fxs b (unlaid (sm s)))) (content (all_ops s) b).
Proof.
  intros HC Hx. destruct HC. unfold content, all_ops, fxs. rewrite fmap_app, lfold_app.
  eapply ceq_trans; [|by apply unlaid_on_top]. rewrite lfold_app. apply lfold_ceq. eapply ceq_trans; [by apply ceq_sym|].
  eapply ceq_trans; [|by apply records_content]. unfold Journal.L. rewrite firstn_all, <-(take_drop (nb s) (rs (jn s))) at 1.
  unfold es at 1. rewrite fmap_app, lfold_app. apply lfold_ceq, c_base0.
Qed.

Lemma stays_running l J J' v : step zero N d0 l J J' → (∀ k, l ≠ Open k) → md J' = Run v → ∃ v0, md J = Run v0.
Proof. intros Hs Hl Hm. destruct Hs; simpl in *; try done; eauto. by destruct (Hl k). Qed.
Lemma lay_running r J J' : step zero N d0 (Lay r) J J' → ∃ v, md J = Run v.
Proof. inversion 1; simpl; eauto. Qed.
Lemma marked_in_records (S : bst) K n k i :
  marked (in_records S K n k) i ↔ i < length K ∨ length K ≤ i ∧ i - length K < length (hist S) ∧
    own S (i - length K) ∈ concat (take (k - n) (recs S)).
Proof. unfold in_records. rewrite marked_all, marked_mask. done. Qed.
Lemma marked_closed (S : bst) K i :
  marked (closed S K) i ↔ i < length K ∨ length K ≤ i ∧ i - length K < length (hist S) ∧ ph S (own S (i - length K)) ≠ PRun.
Proof. unfold closed. rewrite marked_all, marked_mask. done. Qed.
Lemma elem_take_le (R : list (list nat)) a k t : a ≤ k → t ∈ concat (take a R) → t ∈ concat (take k R).
Proof.
  intros Ha Ht. rewrite <-(take_drop a (take k R)), take_take, concat_app. replace (a `min` k) with a by lia.
  apply elem_of_app. by left.
Qed.

Lemma carries_ext (S S' : bst) R T : (∀ t, t ∈ concat T → ops_of S' t = ops_of S t) →
  Forall2 (carries S) R T → Forall2 (carries S') R T.
Proof.
  intros He HF. induction HF as [|r ts R T H1 H2 IH]; constructor.
  - intros b. destruct (H1 b) as (e&Ha&?). exists e. split; [|done]. rewrite <-Ha. do 3 f_equal.
    apply list_fmap_ext. intros i t Ht%elem_of_list_lookup_2. apply He. simpl. apply elem_of_app. by left.
  - apply IH. intros t Ht. apply He. simpl. apply elem_of_app. by right.
Qed.
(** A prefix of the records with everything acknowledged is what the specification allows. *)
Lemma cutset_records s t k : CI s → sim s t → acked (jn s) ≤ k →
  cutset t (in_records (sm s) (kept s) (nb s) k).
Proof.
  intros [] [] Hk. constructor.
  - rewrite m_ops0. unfold in_records, all_ops. by rewrite !app_length, replicate_length, mask_length.
  - intros i j x y Hij Hx Hy Hd. rewrite m_ops0 in Hx, Hy. rewrite !marked_in_records.
    destruct (decide (i < length (kept s))) as [|Hi]; [auto|]. intros [?|(_&Hj&Hin)]; [lia|].
    right. unfold all_ops in *. rewrite lookup_app_r in Hx, Hy by lia. split_and!; [lia|by eapply lookup_lt_Some|].
    eapply (prefix_dep _ _ (i - length (kept s)) (j - length (kept s))); eauto. lia.
  - intros i j (i'&j'&->&->&Hi&Hj&Ho)%m_tied0. rewrite !marked_in_records.
    replace (length (kept s) + i' - length (kept s)) with i' by lia.
    replace (length (kept s) + j' - length (kept s)) with j' by lia. rewrite Ho. intuition lia.
  - intros i Hi%m_safe0. revert Hi. rewrite !marked_in_records. intros [?|(?&?&?)]; [auto|right]. split_and!; [done..|].
    eapply elem_take_le; [|done]. lia.
Qed.

Lemma journal_step l J J' : MI zero N d0 J → step zero N d0 l J J' → MI zero N d0 J' ∧
  match l with
  | Tau | Crash => rs J' = rs J ∧ acked J' = acked J
  | Lay r => rs J' = rs J ++ [r] ∧ acked J' = acked J
  | Ack => rs J' = rs J ∧ acked J' = length (rs J)
  | Read b c => (rs J' = rs J ∧ acked J' = acked J) ∧ ceq (L (rs J) (length (rs J)) b) (Some c)
  | Open k => acked J ≤ k ≤ length (rs J) ∧ rs J' = take k (rs J) ∧ acked J' = k
  end.
Proof.
  intros Hmi [Hmi' Hsp]%step_ok; [|done]. split; [done|]. inversion Hsp; subst; try done.
  match goal with E : Journal.L _ _ _ _ _ = Some _ |- _ => rewrite E end. split; [done|]. intros o. symmetry. auto.
Qed.

Lemma sstep_sim l s s' t : CI s → sim s t → cstep l s s' → ∃ t', sstep l t t' ∧ sim s' t' ∧ CI s'.
Proof.
  intros HC Hm Hs. pose proof HC as [Hmi Hlb Hlen Heff Hbase Hlog Hrun]. pose proof Hm as [Hops Htied Hshut Hsafe].
  destruct Hs as [J J' S K n HJ|x J v S S' K n Hv HS Hh|J v S S' K n Hv HS Hh HR|r ts J J' S S' K n HJ HS HR Hcar
    |J J' S K n HJ|b c c' J J' S K n HJ Hc|b c' J v S K n Hv Hst Hc|J J' S K n HJ|k J J' S K n HJ]; simpl in *.
  - (* the journal's own steps *)
    pose proof (journal_step _ _ _ Hmi HJ) as (Hmi'&HR&Ha).
    exists t. split; [constructor|]. split; constructor; simpl; rewrite ?HR, ?Ha; try done.
    + intros v' Hv'. destruct (stays_running _ _ _ _ HJ ltac:(done) Hv') as [v Hv]. by eapply Hshut.
    + intros v' Hv'. destruct (stays_running _ _ _ _ HJ ltac:(done) Hv') as [v Hv]. by eapply Hrun.
  - (* a commit *)
    destruct t as [O T c a]. simpl in *. specialize (Hrun v Hv). specialize (Hshut v Hv). pose proof (bstep_inv _ _ Hrun HS) as Hrun'.
    destruct (commit_laid _ _ _ Hrun HS Hh) as (HR&Hnew&Hsame). destruct (commit_tied _ _ _ Hrun HS Hh) as (Htog&Hph&Hphn&Hdep).
    assert (Hlen' : length (hist S') = Datatypes.S (length (hist S))) by (rewrite Hh, app_length; simpl; lia).
    assert (Hin : ∀ i k, i < length (hist S) → own S' i ∈ concat (take k (recs S)) ↔ own S i ∈ concat (take k (recs S))).
    { intros i k Hi. split; intros Hin.
      - rewrite <-(proj1 (Hsame i (own S' i) Hi (elem_laid _ _ _ Hin)) eq_refl) in Hin. done.
      - by rewrite (proj2 (Hsame i (own S i) Hi (elem_laid _ _ _ Hin)) eq_refl). }
    eexists. split; [constructor|]. split; constructor; simpl; try done.
    + unfold all_ops in *. simpl in *. by rewrite Hops, Hh, app_assoc.
    + unfold all_ops in Hops. simpl in Hops. rewrite Hops, app_length. intros i j [Hij|(->&Hni&y&Hy&Hd)].
      * destruct (Htied i j Hij) as (i'&j'&->&->&Hi&Hj&Ho). exists i', j'. split_and!; [done..|lia|lia|]. by apply Htog.
      * rewrite Hshut, marked_closed in Hni. assert (length K ≤ i) as Hi by (destruct (decide (i < length K)); [tauto|lia]).
        rewrite lookup_app_r in Hy by done. assert (i - length K < length (hist S)) as Hi' by by eapply lookup_lt_Some.
        exists (i - length K), (length (hist S)). split_and!; [lia|done|lia|lia|]. apply (Hdep _ y); [done..|].
        destruct (decide (ph S (own S (i - length K)) = PRun)) as [|Hn]; [done|]. destruct Hni. auto.
    + intros _ _ i. rewrite Hshut, !marked_closed, Hlen'. split; intros [?|(?&Hi&Hp)]; auto.
      * right. split_and!; [done|lia|]. by rewrite Hph.
      * right. assert (i - length K < length (hist S)) as Hi'.
        { destruct (decide (i - length K = length (hist S))) as [E|]; [by rewrite E in Hp|lia]. }
        split_and!; [done|done|]. by rewrite <-Hph.
    + intros i Hi%Hsafe. revert Hi. rewrite !marked_in_records, HR, Hlen'. intros [?|(?&?&?)]; [auto|right].
      split_and!; [done|lia|]. by apply Hin.
    + by rewrite HR.
    + rewrite HR. eapply carries_ext; [|done]. intros t Ht. unfold ops_of. rewrite Hh, app_length, Nat.add_1_r, mask_S.
      rewrite sel_app by apply mask_length. rewrite bool_decide_eq_false_2 by (intros <-; done). simpl. rewrite app_nil_r. f_equal.
      apply mask_ext. intros i Hi. by apply Hsame.
    + by apply binv_logged.
  - (* a close *)
    destruct t as [O T c a]. simpl in *. specialize (Hrun v Hv). specialize (Hshut v Hv). pose proof (bstep_inv _ _ Hrun HS) as Hrun'.
    destruct (close_keeps _ _ HS Hh HR) as [Ho Hp]. unfold all_ops in *. simpl in *.
    eexists. split; [constructor|split; constructor]; simpl; try done.
    + unfold closed. by rewrite Hops, !app_length, replicate_length, mask_length, Hh.
    + intros i. rewrite Hshut, !marked_closed, Hh, Ho. intros [?|(?&?&?)]; auto.
    + unfold all_ops. simpl. by rewrite Hh.
    + by rewrite Hh, Ho.
    + intros i Hi%Hsafe. revert Hi. by rewrite !marked_in_records, Hh, Ho, HR.
    + by rewrite HR.
    + rewrite HR. eapply carries_ext; [|done]. intros u _. unfold ops_of. by rewrite Hh, Ho.
    + by apply binv_logged.
  - (* a record *)
    destruct (lay_running _ _ _ HJ) as [v Hv]. specialize (Hrun v Hv). specialize (Hshut v Hv). pose proof (bstep_inv _ _ Hrun HS) as Hrun'.
    pose proof (journal_step _ _ _ Hmi HJ) as (Hmi'&HRJ&Ha). destruct (lay_keeps _ _ _ HS HR) as (Hh&Ho&Hp).
    assert (Hops' : ∀ u, ops_of S' u = ops_of S u) by (intros u; unfold ops_of; by rewrite Hh, Ho).
    exists t. split; [constructor|split; constructor]; simpl; rewrite ?HRJ, ?Ha, ?HR; try done.
    + unfold all_ops. simpl. by rewrite Hh.
    + by rewrite Hh, Ho.
    + intros _ _ i. rewrite Hshut, !marked_closed, Hh, Ho, Hp. done.
    + intros i Hi%Hsafe. revert Hi. rewrite !marked_in_records, Hh, Ho, HR. intros [?|(?&?&?)]; [auto|right]. split_and!; [done..|].
      rewrite take_app_le by lia. done.
    + rewrite app_length. lia.
    + rewrite !app_length. simpl. lia.
    + rewrite drop_app_le by lia. apply Forall2_app; [|constructor; [|done]].
      * eapply carries_ext; [|done]. auto.
      * intros b. destruct (Hcar b) as (e&He&Hl). exists e. split; [|done]. rewrite <-He. do 3 f_equal. by apply list_fmap_ext.
    + intros b. eapply ceq_trans; [|apply Hbase]. unfold Journal.L. rewrite take_app_le by lia. apply ceq_refl.
    + by apply binv_logged.
  - (* an acknowledgement *)
    destruct t as [O T c a]. pose proof (journal_step _ _ _ Hmi HJ) as (Hmi'&HR&Ha).
    eexists. split; [constructor|split; constructor]; simpl in *; rewrite ?HR; try done.
    + apply (cutset_records (C J S K n)); [done..|]. simpl. lia.
    + intros v Hv. destruct (stays_running _ _ _ _ HJ ltac:(done) Hv) as [v0 Hv0]. by eapply Hshut.
    + lia.
    + intros v Hv. destruct (stays_running _ _ _ _ HJ ltac:(done) Hv) as [v0 Hv0]. by eapply Hrun.
  - (* reads *)
    pose proof (journal_step _ _ _ Hmi HJ) as (Hmi'&[HR Ha]&Hct).
    exists t. split; [constructor|split; constructor]; simpl; rewrite ?HR, ?Ha; try done.
    + rewrite Hops, <-Hc. apply ceq_sym. by apply (current_content (C J S K n)).
    + intros v Hv. destruct (stays_running _ _ _ _ HJ ltac:(done) Hv) as [v0 Hv0]. by eapply Hshut.
    + intros v Hv. destruct (stays_running _ _ _ _ HJ ltac:(done) Hv) as [v0 Hv0]. by eapply Hrun.
  - exists t. split; [constructor|done]. rewrite Hops, <-Hc. apply ceq_sym. apply (current_content (C J S K n)); [done|]. simpl.
    destruct Hmi as [_ Hri]. rewrite Hv in Hri. pose proof (i_st _ _ _ _ _ _ _ Hri b) as Hb.
    assert (L (rs J) (length (rs J)) b = None) as ->; [|done].
    destruct (stt v b); [done| |by destruct Hb..]. destruct Hb as (?&Hb&_). apply Hb. lia.
  - (* a cut *)
    pose proof (journal_step _ _ _ Hmi HJ) as (Hmi'&HR&Ha).
    assert (Hno : ∀ v, md J' ≠ Run v) by (inversion HJ; done).
    exists t. split; [constructor|split; constructor]; simpl; rewrite ?HR, ?Ha; try done.
    + intros v Hv. by destruct (Hno v).
    + by apply logged_lost.
    + intros v Hv. by destruct (Hno v).
  - (* the opening *)
    pose proof (journal_step _ _ _ Hmi HJ) as (Hmi'&Hk&HR&Ha).
    pose proof (content_at (C J S K n) k) as Hct. simpl in Hct.
    exists (let O := sel (in_records S K n k) (ops t) in Sp O (λ _ _, False) (replicate (length O) true) (replicate (length O) true)).
    assert (Hall : ∀ i, marked (replicate (length (sel (in_records S K n k) (ops t))) true) i ↔
      i < length (sel (in_records S K n k) (K ++ hist S))).
    { intros i. rewrite Hops. unfold all_ops. simpl. unfold marked. rewrite lookup_replicate. intuition. }
    split; [constructor|split; constructor]; simpl; rewrite ?HR, ?Ha; try done.
    + apply (cutset_records (C J S K n)); [done..|]. simpl. lia.
    + rewrite Hops. unfold all_ops. simpl. by rewrite app_nil_r.
    + intros v Hv i. rewrite Hall, marked_closed. simpl. intuition lia.
    + intros i Hi. rewrite marked_in_records. left. by apply Hall.
    + rewrite take_length. lia.
    + rewrite take_length. lia.
    + rewrite drop_ge by (rewrite take_length; lia). constructor.
    + intros b. eapply ceq_trans; [|apply Hct; lia || done]. unfold Journal.L. rewrite take_take, Nat.min_id. apply ceq_refl.
    + apply logged_empty.
    + intros v Hv. by apply binit_inv.
Qed.

Lemma init_CI s : cinit s → CI s ∧ sim s sinit.
Proof.
  intros (J&HJ&->). pose proof (init_MI zero N d0 _ HJ) as Hmi. destruct HJ as (d&->&_).
  split; constructor; simpl; try done; try lia.
  - apply logged_empty.
  - intros v Hv. by apply binit_inv.
Qed.

Lemma steps_sim ls s s' t : CI s → sim s t → csteps ls s s' → ∃ t', ssteps ls t t' ∧ sim s' t' ∧ CI s'.
Proof.
  intros HC Hm Hs. revert t HC Hm.
  induction Hs as [s|l ls s1 s2 s3 H1 H2 IH]; intros t HC Hm; [exists t; split; [constructor|done]|].
  destruct (sstep_sim _ _ _ _ HC Hm H1) as (t2&Ht&Hm2&HC2). destruct (IH t2 HC2 Hm2) as (t3&Hts&?).
  exists t3. split; [by econstructor|done].
Qed.
Lemma reach_sim ls s s' : cinit s → csteps ls s s' → ∃ t, ssteps ls sinit t ∧ sim s' t ∧ CI s'.
Proof. intros [HC Hm]%init_CI Hs. by eapply steps_sim. Qed.
(** Every trace of the system, cut anywhere and as often as one likes, also within recoveries,
    is a trace of the specification. *)
Theorem steadfast_refines ls s s' : cinit s → csteps ls s s' → ∃ t, ssteps ls sinit t ∧ ops t = all_ops s'.
Proof. intros Hi Hs. destruct (reach_sim _ _ _ Hi Hs) as (t&?&[]&_). eauto. Qed.

(** ** In a user's words *)
Lemma spec_sub ls t t' : length (safe t) ≤ length (ops t) → ssteps ls t t' →
  sel (safe t) (ops t) `sublist_of` sel (safe t') (ops t').
Proof.
  intros Hl Hs. induction Hs as [|l ls t1 t2 t3 H1 H2 IH]; [done|].
  assert (length (safe t2) ≤ length (ops t2) ∧ sel (safe t1) (ops t1) `sublist_of` sel (safe t2) (ops t2)) as [Hl2 Hsub];
    [|etrans; [exact Hsub|by apply IH]].
  destruct H1 as [t|t|x O T c a|m O T c a|m O T c a [Hm _ _ Hsafe]|b c t|m t [Hm _ _ Hsafe]]; simpl in *; try done.
  - rewrite app_length. split; [lia|]. by rewrite sel_more.
  - rewrite Hm. split; [done|]. by apply sel_mono.
  - rewrite replicate_length. split; [done|]. rewrite sel_all by done. by apply sel_mono.
Qed.
(** What is acknowledged survives all later cuts: its operations are there for ever, in their
    order. *)
Theorem acknowledged_for_ever ls1 ls2 s0 s1 s2 s3 m :
  cinit s0 → csteps ls1 s0 s1 → cstep (CAck m) s1 s2 → csteps ls2 s2 s3 →
  sel m (all_ops s1) `sublist_of` all_ops s3.
Proof.
  intros Hi H1 Ha H2. destruct (reach_sim _ _ _ Hi H1) as (t1&_&Hm1&HC1).
  destruct (sstep_sim _ _ _ _ HC1 Hm1 Ha) as (t2&Ht2&Hm2&HC2). destruct (steps_sim _ _ _ _ HC2 Hm2 H2) as (t3&Ht3&Hm3&_).
  apply spec_sub in Ht3; [|inversion Ht2 as [| | | |? ? ? ? ? []| |]; subst; simpl in *; lia].
  rewrite <-(m_ops _ _ Hm1), <-(m_ops _ _ Hm3). inversion Ht2; subst; simpl in *.
  etrans; [exact Ht3|]. apply sel_sublist.
Qed.
(** A read sees every committed operation, in the order of commits. *)
Theorem reads_see_commits ls s0 s s' b c :
  cinit s0 → csteps ls s0 s → cstep (CRead b c) s s' → ceq (content (all_ops s) b) (Some c).
Proof.
  intros Hi Hs Hr. destruct (reach_sim _ _ _ Hi Hs) as (t&_&Hm&HC). destruct (sstep_sim _ _ _ _ HC Hm Hr) as (t'&Ht&_).
  inversion Ht; subst. by rewrite <-(m_ops _ _ Hm).
Qed.
(** Of each stream, an opening keeps a prefix. *)
Lemma sel_prefix c h m :
  (∀ i j x y, i < j → h !! i = Some x → h !! j = Some y → str x = str y → marked m j → marked m i) →
  filter (λ x, str x = c) (sel m h) `prefix_of` filter (λ x, str x = c) h.
Proof.
  revert m. induction h as [|x h IH]; intros m H; [by rewrite sel_nil_r|].
  destruct m as [|b m]; [apply prefix_nil|]. simpl.
  assert (filter (λ x, str x = c) (sel m h) `prefix_of` filter (λ x, str x = c) h) as IH'.
  { apply IH. intros i j y z Hij Hy Hz E. apply (H (Datatypes.S i) (Datatypes.S j) y z); [lia|done..]. }
  destruct b; rewrite !filter_cons; case_decide as E; try done; [by apply prefix_cons|].
  assert (filter (λ x, str x = c) (sel m h) = []) as ->; [|apply prefix_nil].
  assert (Hno : ∀ j y, h !! j = Some y → str y = c → ¬ marked m j).
  { intros j y Hy Ey Hj. specialize (H 0 (Datatypes.S j) x y ltac:(lia) eq_refl Hy ltac:(congruence) Hj). done. }
  clear -Hno. revert m Hno. induction h as [|y h IH]; intros m Hno; [by rewrite sel_nil_r|].
  destruct m as [|b m]; [done|]. simpl.
  assert (filter (λ x, str x = c) (sel m h) = []) as IH' by (apply IH; intros j; apply (Hno (Datatypes.S j))).
  destruct b; [|done]. rewrite filter_cons. case_decide; [|done]. by destruct (Hno 0 y eq_refl).
Qed.
Section opening.
Context (ls : list clabel) (s0 s s' : cst) (m : list bool).
Hypotheses (Hinit : cinit s0) (Hsteps : csteps ls s0 s) (Hopen : cstep (COpen m) s s').
Lemma open_cutset : ∃ t, cutset t m ∧ sim s t ∧ all_ops s' = sel m (all_ops s).
Proof.
  destruct (reach_sim _ _ _ Hinit Hsteps) as (t&_&Hm&HC). destruct (sstep_sim _ _ _ _ HC Hm Hopen) as (t'&Ht&_&_).
  exists t. split_and!; [by inversion Ht|done|]. inversion Hopen; subst. unfold all_ops. simpl. by rewrite app_nil_r.
Qed.
Theorem stream_keeps_prefix c :
  filter (λ x, str x = c) (all_ops s') `prefix_of` filter (λ x, str x = c) (all_ops s).
Proof.
  destruct open_cutset as (t&[_ Hd _ _]&Hm&->). apply sel_prefix. rewrite (m_ops _ _ Hm) in Hd.
  intros i j x y Hij Hx Hy E. eapply Hd; [done..|by left].
Qed.
(** With an operation there is everything that it depends on, of whatever stream. *)
Theorem open_closed i j x y : i < j → all_ops s !! i = Some x → all_ops s !! j = Some y → dep x y → marked m j → marked m i.
Proof. destruct open_cutset as (t&[_ Hd _ _]&Hm&_). rewrite (m_ops _ _ Hm) in Hd. eauto. Qed.
(** Transactions are atomic: all operations of one survive, or none. *)
Theorem transactions_atomic i j :
  i < length (hist (sm s)) → j < length (hist (sm s)) → own (sm s) i = own (sm s) j →
  marked m (length (kept s) + i) ↔ marked m (length (kept s) + j).
Proof.
  intros Hi Hj Ho. inversion Hopen; subst; simpl in *. rewrite !marked_in_records.
  replace (length K + i - length K) with i by lia. replace (length K + j - length K) with j by lia. rewrite Ho. intuition lia.
Qed.
(** When a recovery has ended, home holds what the surviving operations lead to, one after the
    other in the order of their commits. *)
Theorem home_of_survivors b c o : content (sel m (all_ops s)) b = Some c → cur (home (dk (jn s')) b o) = c o.
Proof.
  intros Hc. destruct (reach_sim _ _ _ Hinit Hsteps) as (t&_&_&HC).
  assert (∃ k, step zero N d0 (Open k) (jn s) (jn s') ∧ m = in_records (sm s) (kept s) (nb s) k) as (k&HJ&->)
    by (inversion Hopen; subst; simpl; eauto).
  destruct HC as [Hmi Hlb Hlen Heff Hbase Hlog Hrun] eqn:E; clear E. pose proof (journal_step _ _ _ Hmi HJ) as (_&Hk&_&_).
  pose proof (content_at s k b HC ltac:(lia) ltac:(lia)) as Hct. rewrite Hc in Hct.
  destruct (L (rs (jn s)) k b) as [c'|] eqn:EL; [|done]. rewrite <-Hct. destruct Hmi as [_ Hm].
  inversion HJ as [| | | | | | | | | | | | | | | | | | |i h k' d R a hn Hn]; subst; simpl in *.
  match goal with E : _ = jn s |- _ => rewrite <-E in *; simpl in * end.
  destruct Hm as (_&_&hn'&_&_&_&_&_&_&_&_&_&_&Hh). by apply Hh.
Qed.
End opening.
End compose.
