(** The asynchronous disk, one cell at a time.

    A cell is the smallest thing that a cut may leave alone in its old or new value: a byte
    of a home block, a block of the log, a tail header. It has a history of written values;
    a cut leaves any value from the newest one known durable ([low]) on, the write under way
    included. A flush makes durable what had completed ([don]) before it began: the model
    lets the disk persist completed values at any moment ([persist]), and a flush's end is
    the observation that everything of its beginning's snapshot has persisted. Two writes
    under way to one cell at once spoil it: from then on it may hold anything ([bad]). *)
From stdpp Require Import prelude functions list.

Section cell.
Context {A : Type}.

Record cell := Cell { old : list A; cur : A; low : nat; don : nat; bad : bool }.

(** What a cut may leave. *)
Definition poss (c : cell) (v : A) : Prop :=
  v = cur c ∨ (∃ i, low c ≤ i ∧ old c !! i = Some v) ∨ bad c = true.
(** No write is under way, and there never were two. *)
Definition quiet (c : cell) : Prop := don c = length (old c) ∧ bad c = false.

(** A write begins; [g] are values that may be seen if it is torn. *)
Definition begin (g : list A) (c : cell) (v : A) : cell :=
  Cell (old c ++ cur c :: g) v (low c) (don c) (bad c || negb (bool_decide (don c = length (old c)))).
Definition finish (c : cell) : cell := Cell (old c) (cur c) (low c) (length (old c)) (bad c).
(** The disk writes its cache back, as far as writes have completed. *)
Definition persist (c c' : cell) : Prop :=
  old c' = old c ∧ cur c' = cur c ∧ don c' = don c ∧ bad c' = bad c ∧ low c ≤ low c' ≤ low c `max` don c.
(** After a cut, or the death of the process while the caches live on: nothing that was
    impossible before is possible now, and nothing is under way. *)
Definition survives (c c' : cell) : Prop := quiet c' ∧ ∀ v, poss c' v → poss c v.
(** Everything is complete and flushed, and no operation is under way. *)
Definition clean (c : cell) : cell := Cell [] (cur c) 0 0 false.

Lemma poss_cur c : poss c (cur c).
Proof. by left. Qed.
Lemma poss_begin g c v w : quiet c → poss (begin g c v) w → w = v ∨ w ∈ g ∨ poss c w.
Proof.
  intros [Hq Hb] [->|[(i&Hi&Hw)|Hw]]; simpl in *; [by left| |].
  - apply lookup_app_Some in Hw as [Hw|[Hl Hw]]; [right; right; right; left; eauto|].
    apply lookup_cons_Some in Hw as [[_ <-]|[_ Hw]]; [right; right; by left|].
    right. left. by eapply elem_of_list_lookup_2.
  - rewrite Hb, bool_decide_eq_true_2 in Hw by done. done.
Qed.
Lemma poss_finish c v : poss (finish c) v ↔ poss c v.
Proof. done. Qed.
Lemma poss_persist c c' v : persist c c' → poss c' v → poss c v.
Proof.
  intros (Ho&Hc&Hd&Hb&Hl) [->|[(i&Hi&Hw)|Hw]]; [left; done|right; left|right; right; congruence].
  exists i. rewrite <-Ho. split; [lia|done].
Qed.
Lemma poss_clean c v : poss (clean c) v → v = cur c.
Proof. by intros [->|[(i&_&[=])|[=]]]. Qed.
(** The newest value has persisted: nothing else can be there. *)
Lemma poss_exact c v : bad c = false → length (old c) ≤ low c → poss c v → v = cur c.
Proof.
  intros Hb Hl [->|[(i&Hi&Hw%lookup_lt_Some)|Hw]]; [done|lia|congruence].
Qed.
Lemma quiet_finish c : bad c = false → quiet (finish c).
Proof. done. Qed.
Lemma quiet_clean c : quiet (clean c).
Proof. done. Qed.
Lemma survives_clean c : survives c (clean c).
Proof. split; [done|]. by intros v ->%poss_clean; apply poss_cur. Qed.
End cell.
Arguments cell : clear implicits.

(** Tears of 512 bytes. A home block is a function from offsets to cells whose writes go
    together, so all cells of a sector have histories of one length; a cut that keeps
    sectors whole, taking one moment [pick s] for each sector [s], is among the cuts that
    pick for each byte. Whatever holds for the latter holds for the former. *)
Section tears.
Context {off A : Type} (sector : off → nat).
Definition at_moment (c : cell A) (i : nat) (v : A) : Prop :=
  (low c ≤ i ∧ old c !! i = Some v) ∨ (length (old c) ≤ i ∧ v = cur c).
Theorem sector_tears_are_cuts (blk : off → cell A) (pick : nat → nat) (now : off → A) :
  (∀ o, at_moment (blk o) (pick (sector o)) (now o)) → ∀ o, poss (blk o) (now o).
Proof. intros H o. destruct (H o) as [[? ?]|[_ ->]]; [right; left; eauto|by left]. Qed.
End tears.
