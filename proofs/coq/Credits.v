(** Log credits: what is admitted fits, whatever order things happen in, and a wait for log
    space ends once what is under way has ended. Reservations are in whole blocks for each
    open operation and each transaction; a record of many transactions saves headers. *)
From stdpp Require Import prelude list.

Section credits.
Context (N B H spare : nat) (** log blocks, block bytes, header bytes, blocks kept back *).
Hypothesis Bpos : 0 < B.

(** Blocks for [x] log bytes. *)
Definition need (x : nat) : nat := (x + H + (B - 1)) `div` B.
Definition need_all (l : list nat) : nat := sum_list (need <$> l).

Record cst := C {
  open : list nat;  (** credits of open operations, in bytes *)
  txns : list nat;  (** log bytes of transactions that are not laid, held ones included *)
  head : nat; tail : nat }.
Definition reserved (s : cst) : nat := need_all (open s) + need_all (txns s).
Definition free (s : cst) : nat := N - (head s - tail s).

Inductive cstep : cst → cst → Prop :=
| c_admit c s : reserved s + need c + spare ≤ free s →
    cstep s (C (c :: open s) (txns s) (head s) (tail s))
| c_leave c o s : open s ≡ₚ c :: o → cstep s (C o (txns s) (head s) (tail s))
(* a commit brings at most its credits, to a new transaction or a running one *)
| c_new c x o s : open s ≡ₚ c :: o → x ≤ c → cstep s (C o (x :: txns s) (head s) (tail s))
| c_join c x b o t s : open s ≡ₚ c :: o → txns s ≡ₚ b :: t → x ≤ c →
    cstep s (C o (b + x :: t) (head s) (tail s))
| c_merge a b t s : txns s ≡ₚ a :: b :: t → cstep s (C (open s) (a + b :: t) (head s) (tail s))
(* absorption, a bound made exact, held bytes given up at the close *)
| c_shrink a b t s : txns s ≡ₚ a :: t → b ≤ a → cstep s (C (open s) (b :: t) (head s) (tail s))
| c_lay bs t n s : txns s ≡ₚ bs ++ t → bs ≠ [] → n ≤ need (sum_list bs) →
    cstep s (C (open s) t (head s + n) (tail s))
(* a record that only proves another *)
| c_empty s : reserved s < free s → cstep s (C (open s) (txns s) (head s + 1) (tail s))
| c_trim p s : tail s ≤ p ≤ head s → cstep s (C (open s) (txns s) (head s) p).

Definition cinv (s : cst) : Prop := tail s ≤ head s ∧ head s - tail s + reserved s ≤ N.

Lemma need_le x q : x + H ≤ B * q → need x ≤ q.
Proof. intros Hx. unfold need. apply Nat.lt_succ_r, Nat.div_lt_upper_bound; lia. Qed.
Lemma need_ge x : x + H ≤ B * need x.
Proof.
  unfold need. pose proof (Nat.div_mod (x + H + (B - 1)) B ltac:(lia)).
  pose proof (Nat.mod_upper_bound (x + H + (B - 1)) B ltac:(lia)). lia.
Qed.
Lemma need_mono x y : x ≤ y → need x ≤ need y.
Proof. intros Hx. apply need_le. pose proof (need_ge y). lia. Qed.
Lemma need_add x y : need (x + y) ≤ need x + need y.
Proof. apply need_le. pose proof (need_ge x). pose proof (need_ge y). lia. Qed.
Lemma need_all_perm l k : l ≡ₚ k → need_all l = need_all k.
Proof. unfold need_all. induction 1; csimpl; lia. Qed.
Lemma need_all_app l k : need_all (l ++ k) = need_all l + need_all k.
Proof. unfold need_all. induction l; csimpl; lia. Qed.
Lemma need_all_cons x l : need_all (x :: l) = need x + need_all l.
Proof. done. Qed.
Lemma need_sum l : l ≠ [] → need (sum_list l) ≤ need_all l.
Proof.
  induction l as [|x l IH]; [done|]. intros _. simpl. rewrite need_all_cons.
  destruct (decide (l = [])) as [->|Hl].
  - simpl. rewrite Nat.add_0_r. lia.
  - pose proof (need_add x (sum_list l)). specialize (IH Hl). lia.
Qed.

Lemma cstep_inv s s' : cinv s → cstep s s' → cinv s'.
Proof.
  intros [Ht Hr] Hs. destruct Hs; unfold cinv, reserved, free in *; simpl in *;
    repeat match goal with Hp : _ ≡ₚ _ |- _ => apply need_all_perm in Hp end;
    rewrite ?need_all_cons, ?need_all_app in *.
  - lia.
  - lia.
  - pose proof (need_mono x c). lia.
  - pose proof (need_mono x c). pose proof (need_add b x). lia.
  - pose proof (need_add a b). lia.
  - pose proof (need_mono b a). lia.
  - pose proof (need_sum bs). specialize (H3 H1). lia.
  - lia.
  - lia.
Qed.
Inductive csteps : cst → cst → Prop :=
| cs_nil s : csteps s s
| cs_cons s1 s2 s3 : cstep s1 s2 → csteps s2 s3 → csteps s1 s3.
Lemma csteps_inv s s' : cinv s → csteps s s' → cinv s'.
Proof. intros Hi Hs. induction Hs; [done|]. eauto using cstep_inv. Qed.

(** (5) Whatever transactions a record is made of, it fits before the durable tail. *)
Theorem record_fits s0 s bs t n :
  cinv s0 → csteps s0 s → txns s ≡ₚ bs ++ t → bs ≠ [] → n ≤ need (sum_list bs) → n ≤ free s.
Proof.
  intros Hi Hs Hp Hne Hn. destruct (csteps_inv _ _ Hi Hs) as [Ht Hr]. unfold reserved, free in *.
  apply need_all_perm in Hp. rewrite need_all_app in Hp. pose proof (need_sum bs Hne). lia.
Qed.
(** A wait for log space is no deadlock: transactions can always be laid ([record_fits]),
    acknowledged records can be trimmed, open operations end by themselves; and then whatever
    fits an empty log is admitted. *)
Theorem waiting_ends s c :
  cinv s → open s = [] → txns s = [] → need c + spare ≤ N →
  ∃ s1, cstep s s1 ∧ cstep s1 (C [c] [] (head s1) (tail s1)).
Proof.
  intros [Ht Hr] Ho Hx Hc. destruct s as [o t h l]; simpl in *; subst.
  exists (C [] [] h h). split.
  - apply (c_trim h (C [] [] h l)). simpl. lia.
  - apply (c_admit c (C [] [] h h)). unfold reserved, free; simpl. unfold need_all; simpl. lia.
Qed.
End credits.
