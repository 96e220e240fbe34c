(** Absorption: a record carries one effect for each block, made of those of its operations in
    their order (last writer wins). What a prefix of the records leads to is then what their
    operations lead to, one after the other. *)
From stdpp Require Import prelude functions list.
From Steadfast Require Import Disk Replay Journal.

Section absorb.
Context {addr : Type} `{!EqDecision addr} {off byte : Type} (zero : byte).
Context (d0 : addr → option (off → byte)).
Notation cont := (off → byte).
Notation eff := (eff off byte).

(** [None]: does not happen. A freed block is not touched before its release, a block is
    written around the log only when it is free. *)
Definition absorb (e1 e2 : eff) : option eff :=
  match e1, e2 with
  | ENone, e => Some e
  | e, ENone => Some e
  | EPatch z p, EPatch false q => Some (EPatch z (λ o, match q o with Some v => Some v | None => p o end))
  | EPatch _ _, EPatch true q => Some (EPatch true q)
  | EPatch _ _, EFree _ => Some (EFree true)
  | ECover chk c false, EPatch false q => Some (ECover chk (ov q c) false)
  | ECover chk c false, EFree _ => Some (ECover chk c true)
  | _, _ => None
  end.
Definition absorbs (l : list eff) : option eff :=
  foldl (λ acc e, match acc with Some a => absorb a e | None => None end) (Some ENone) l.

Definition ceq (x y : option cont) : Prop :=
  match x, y with Some c, Some c' => ∀ o, c o = c' o | None, None => True | _, _ => False end.
Lemma ceq_refl x : ceq x x.
Proof. by destruct x. Qed.
Lemma ceq_trans x y z : ceq x y → ceq y z → ceq x z.
Proof. destruct x, y, z; simpl; try done. intros H1 H2 o. by rewrite H1. Qed.
Lemma ceq_sym x y : ceq x y → ceq y x.
Proof. destruct x, y; simpl; try done. Qed.
Lemma lstep_ceq x y e : ceq x y → ceq (lstep zero x e) (lstep zero y e).
Proof.
  destruct e as [|[] p|rv|chk c []]; simpl; try done.
  destruct x, y; simpl; try done. intros H o. unfold ov. by destruct (p o).
Qed.
Lemma lfold_ceq x y l : ceq x y → ceq (lfold zero x l) (lfold zero y l).
Proof.
  revert x y. induction l as [|e l IH]; intros x y H; [done|]. simpl. by apply IH, lstep_ceq.
Qed.

(** One absorbed effect does what the two do in turn. *)
Theorem absorb_ok e1 e2 e x : absorb e1 e2 = Some e →
  ceq (lstep zero x e) (lstep zero (lstep zero x e1) e2).
Proof.
  destruct e1 as [|z p|rv|chk c fr].
  - destruct e2; intros [= <-]; apply ceq_refl.
  - destruct e2 as [|[] q|rv|chk c fr]; intros [= <-]; [apply ceq_refl|done| |done].
    destruct z; simpl; [|destruct x; simpl; [|done]]; intros o; unfold ov; by destruct (q o).
  - destruct e2; intros [= <-]; apply ceq_refl.
  - destruct fr; destruct e2 as [|[] q|rv|chk' c' fr']; intros [= <-]; try apply ceq_refl; done.
Qed.
Theorem absorbs_ok l e x : absorbs l = Some e → ceq (lstep zero x e) (lfold zero x l).
Proof.
  revert e. induction l as [|e' l IH] using rev_ind; intros e; [by intros [= <-]; apply ceq_refl|].
  unfold absorbs. rewrite foldl_app. simpl. fold (absorbs l). destruct (absorbs l) as [a|]; [|done].
  intros Ha. rewrite lfold_snoc. eapply ceq_trans; [by apply absorb_ok|]. by apply lstep_ceq, IH.
Qed.

(** Records whose effects are those of their operations [ops j]: the content that the first
    [k] of them lead to is what these operations lead to, in log order. *)
Theorem content_of_operations {op} (fx : op → addr → eff) (ops : list (list op)) (R : list rec) k b :
  Forall2 (λ r l, absorbs ((λ x, fx x b) <$> l) = Some (r_eff r b)) R ops →
  ceq (L zero d0 R k b) (lfold zero (d0 b) ((λ x, fx x b) <$> concat (take k ops))).
Proof.
  intros HF. unfold L, es.
  assert (Forall2 (λ r l, absorbs ((λ x, fx x b) <$> l) = Some (r_eff r b)) (take k R) (take k ops)) as HF'
    by by apply Forall2_take.
  clear HF. revert HF'. generalize (take k R) as R'. generalize (take k ops) as O. generalize (d0 b) as x.
  intros x O R' HF. revert x. induction HF as [|r l R' O H1 H2 IH]; intros x; csimpl; [apply ceq_refl|].
  rewrite fmap_app. unfold lfold at 2. rewrite foldl_app. fold (lfold zero x ((λ y, fx y b) <$> l)).
  fold (lfold zero (lfold zero x ((λ y, fx y b) <$> l)) ((λ y, fx y b) <$> concat O)).
  eapply ceq_trans; [|apply IH]. apply lfold_ceq. by apply absorbs_ok.
Qed.
End absorb.
