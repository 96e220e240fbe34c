(** What records do to one block: the logical content that a prefix of the log leads to,
    and what replay computes, byte by byte, from the records since the tail and whatever
    the home block holds. *)
From stdpp Require Import prelude functions list.

Section replay.
Context {off byte : Type} (zero : byte).
Notation cont := (off → byte).

(** One record's effect on one block. Patches are the bytes that the record carries for it,
    [z] says that the block begins a new life; a freed block is revoked in the record if the
    log knows it ([rv]); [ECover] is a block written around the log: covered by a hash
    ([chk]) or flushed beforehand, and perhaps freed by the same record ([fr]). *)
Inductive eff :=
  | ENone
  | EPatch (z : bool) (p : off → option byte)
  | EFree (rv : bool)
  | ECover (chk : bool) (c : cont) (fr : bool).

Definition ov (p : off → option byte) (c : cont) : cont := λ o, match p o with Some v => v | None => c o end.

(** The logical content; [None]: the block is free. *)
Definition lstep (x : option cont) (e : eff) : option cont :=
  match e with
  | ENone => x
  | EPatch true p => Some (ov p (λ _, zero))
  | EPatch false p => match x with Some c => Some (ov p c) | None => None end
  | EFree _ => None
  | ECover _ c fr => if fr then None else Some c
  end.
Definition lfold (x : option cont) (es : list eff) : option cont := foldl lstep x es.

(** Replay of one byte whose home holds [v]. A revoke undoes all earlier patches. *)
Definition rstep (o : off) (v : byte) (acc : byte) (e : eff) : byte :=
  match e with
  | EPatch z p => match p o with Some w => w | None => if z then zero else acc end
  | EFree true => v
  | _ => acc
  end.
Definition rpl (es : list eff) (o : off) (v : byte) : byte := foldl (rstep o v) v es.
(** Whether a patch is left after the newest revoke: the block is written by replay, and
    belongs to the checkpointer's set. *)
Definition tstep (acc : bool) (e : eff) : bool :=
  match e with EPatch _ _ => true | EFree true => false | _ => acc end.
Definition tch (es : list eff) : bool := foldl tstep false es.

Definition covers (e : eff) : Prop := match e with ECover _ _ _ => True | _ => False end.

(** Replaying [seg] on a home byte that holds [v] gives what [all] leads to. *)
Definition gd (x : option cont) (all seg : list eff) (o : off) (v : byte) : Prop :=
  ∀ c, lfold x all = Some c → rpl seg o v = c o.

Lemma lfold_snoc x es e : lfold x (es ++ [e]) = lstep (lfold x es) e.
Proof. unfold lfold. by rewrite foldl_app. Qed.
Lemma rpl_snoc es e o v : rpl (es ++ [e]) o v = rstep o v (rpl es o v) e.
Proof. unfold rpl. by rewrite foldl_app. Qed.
Lemma tch_snoc es e : tch (es ++ [e]) = tstep (tch es) e.
Proof. unfold tch. by rewrite foldl_app. Qed.

Lemma tch_id es o v : tch es = false → rpl es o v = v.
Proof.
  induction es as [|e es IH] using rev_ind; [done|]. rewrite tch_snoc, rpl_snoc.
  destruct e as [| |[]|]; simpl; intros H; auto; discriminate.
Qed.
Lemma tch_mono b es : foldl tstep b es = false → foldl tstep false es = false.
Proof.
  induction es as [|e es IH] using rev_ind; [done|]. rewrite !foldl_app; simpl.
  destruct e as [| |[]|]; simpl; auto.
Qed.
Lemma tch_app_r e1 e2 : tch (e1 ++ e2) = false → tch e2 = false.
Proof. unfold tch. rewrite foldl_app. apply tch_mono. Qed.
Lemma rpl_app_untouched e1 e2 o v : tch e1 = false → rpl (e1 ++ e2) o v = rpl e2 o v.
Proof. intros H. unfold rpl. rewrite foldl_app. f_equal. by apply tch_id. Qed.

(** A byte of home either shows through replay, or does not matter to it. *)
Lemma rpl_id_or_const es o : (∀ w, rpl es o w = w) ∨ (∃ x, ∀ w, rpl es o w = x).
Proof.
  induction es as [|e es IH] using rev_ind; [by left|].
  destruct e as [|z p|[]|c]; simpl.
  - destruct IH as [H|[x H]]; [left|right; exists x]; intros w; by rewrite rpl_snoc; simpl.
  - destruct (p o) as [y|] eqn:E; [right; exists y; intros w; rewrite rpl_snoc; simpl; by rewrite E|].
    destruct z; [right; exists zero; intros w; rewrite rpl_snoc; simpl; by rewrite E|].
    destruct IH as [H|[x H]]; [left|right; exists x]; intros w; rewrite rpl_snoc; simpl; by rewrite E.
  - left. intros w. by rewrite rpl_snoc.
  - destruct IH as [H|[x H]]; [left|right; exists x]; intros w; by rewrite rpl_snoc; simpl.
  - destruct IH as [H|[x H]]; [left|right; exists x]; intros w; by rewrite rpl_snoc; simpl.
Qed.
(** Replay is idempotent: on a home that is up to date it changes nothing. *)
Lemma gd_self x all seg o v c : gd x all seg o v → lfold x all = Some c → rpl seg o (c o) = c o.
Proof.
  intros H Hc. specialize (H _ Hc). destruct (rpl_id_or_const seg o) as [Hi|[y Hy]]; [by rewrite Hi|].
  by rewrite Hy in *.
Qed.
(** A further record keeps a good home good, unless it covers the block. *)
Lemma gd_snoc x all seg e o v : ¬ covers e → gd x all seg o v → gd x (all ++ [e]) (seg ++ [e]) o v.
Proof.
  intros Hn H c. rewrite lfold_snoc, rpl_snoc. destruct e as [|[] p|rv|]; simpl in *; try done.
  - by intros ?%H.
  - intros [= <-]. done.
  - destruct (lfold x all) as [c0|] eqn:E; [|done]. intros [= <-]. unfold ov.
    destruct (p o); [done|]. by apply H.
Qed.
(** Of a covered block, the home must hold the data itself. *)
Lemma gd_cover x all seg chk c fr o v :
  tch seg = false → v = c o → gd x (all ++ [ECover chk c fr]) (seg ++ [ECover chk c fr]) o v.
Proof.
  intros Ht -> c'. rewrite lfold_snoc, rpl_snoc. simpl. destruct fr; [done|]. intros [= <-]. by apply tch_id.
Qed.
Lemma gd_empty x all o v c : lfold x all = Some c → v = c o → gd x all [] o v.
Proof. intros E -> c' E'. by simplify_eq. Qed.
(** Without the records before the new tail, home having caught up with them. *)
Lemma gd_drop x all e1 e2 o v : tch e1 = false → gd x all (e1 ++ e2) o v → gd x all e2 o v.
Proof. intros Ht H c Hc. rewrite <-(H _ Hc). by rewrite rpl_app_untouched. Qed.
End replay.
Arguments eff : clear implicits.
