(** Room: blocks and sectors counted, with what an epoch of the host's and the collector takes and gives. The
    constraints that [Limits::hold] decides imply that no page ever finds no block, and that behind
    each flush the reserve is there again. What is outside: that a flush adds no more pages than [own]; the pages of an
    epoch's trims are counted in [seal_trims], whose steps are obligations of their own (`smt`, `trims`). *)
From stdpp Require Import prelude list relations.
From Coq Require Import ZArith Lia.
Local Open Scope Z_scope.

(** Numbers of a disk: sectors of a page, pages and sectors of a block; writes of an epoch and pages that its flush
    adds; most victims, most valid sectors of one; used blocks from which on there is such a victim, blocks too
    new to be one; sectors of the disk, blocks for data without those announced; places where the two streams may be open. *)
Record disk := Disk {
  s : Z; D : Z; W : Z; own : Z; K : Z; N : Z; U : Z; newest : Z; L : Z;
  blocks : Z; margin : Z; reserve : Z; hosts : Z; moves : Z }.

(** What is assumed of them: they make sense, and keep to the constraints. *)
Record fits (d : disk) : Prop := Fits {
  f_s : 0 < s d; f_D : 0 < D d; f_W : 0 < W d; f_own : 0 < own d; f_K : 0 ≤ K d; f_N : 0 ≤ N d;
  f_hosts : 1 ≤ hosts d; f_moves : 1 ≤ moves d; f_newest : 0 ≤ newest d;
  (** (1): moving [K] victims gives what an epoch takes, with a page that waits when it begins. *)
  f_produced : (W d + s d * own d + s d) + K d * N d ≤ K d * (s d * D d);
  (** The reserve is what an epoch takes. *)
  f_room : (W d + s d * own d + s d) + K d * N d ≤ reserve d * (s d * D d);
  (** (2), where the margin holds what a flush adds. *)
  f_used : U d + reserve d ≤ blocks d - 2 * (hosts d + moves d) - margin d;
  f_margin : s d * own d + 2 * s d ≤ margin d * (s d * D d);
  (** The pigeonhole. *)
  f_pigeons : newest d < U d ∧ L d < (U d - newest d) * (N d + 1) }.

(** ** The pigeonhole principle *)
Definition sum (l : list Z) : Z := foldr Z.add 0 l.
Definition len {A} (l : list A) : Z := Z.of_nat (length l).
Lemma len_app {A} (l k : list A) : len (l ++ k) = len l + len k.
Proof. unfold len. rewrite app_length. lia. Qed.
Lemma len_cons {A} (x : A) l : len (x :: l) = 1 + len l.
Proof. unfold len. simpl. lia. Qed.
Lemma len_nil {A} : len ([] : list A) = 0.
Proof. done. Qed.
Lemma len_pos {A} (l : list A) : 0 ≤ len l.
Proof. unfold len. lia. Qed.
Lemma sum_app l k : sum (l ++ k) = sum l + sum k.
Proof. induction l as [|x l IH]; simpl in *; lia. Qed.
Lemma sum_cons x l : sum (x :: l) = x + sum l.
Proof. done. Qed.
Global Arguments sum : simpl never.
Lemma sum_above n l : (∀ v, v ∈ l → n < v) → len l * (n + 1) ≤ sum l.
Proof.
  induction l as [|x l IH]; intros H; [done|].
  rewrite len_cons, sum_cons.
  assert (n < x) by (apply H; left). assert (len l * (n + 1) ≤ sum l) by (apply IH; intros v Hv; apply H; by right). lia.
Qed.
(** Of at least [U - newest] blocks with at most [L] valid sectors in all, one has at most [N]. *)
Theorem pigeonhole d used : fits d → U d - newest d ≤ len used → (∀ v, v ∈ used → 0 ≤ v) → sum used ≤ L d →
  ∃ v, v ∈ used ∧ v ≤ N d.
Proof.
  intros F Hlen Hpos Hsum.
  destruct (decide (Exists (λ v, v ≤ N d) used)) as [He|Hn].
  { apply Exists_exists in He as (v & Hv & Hle). by exists v. }
  exfalso. assert (len used * (N d + 1) ≤ sum used).
  { apply sum_above. intros v Hv. destruct (Z_le_gt_dec v (N d)); [|lia].
    exfalso. apply Hn. apply Exists_exists. by exists v. }
  destruct (f_pigeons d F). pose proof (f_N d F). nia.
Qed.

(** ** States *)
(** Erased and erasable blocks, but for those that metadata and bad blocks may claim; pages left at each place where
    the streams are open; valid sectors of the used blocks that may be victims, and of the others; of the block that
    is being emptied, those still to be looked at; sectors that wait in the collector's buffer, and blocks all of
    whose sectors were looked at, the last ones waiting there; blocks without valid sectors that are erasable behind
    the next commit, and others; writes still to come, sectors in the host's buffer, pages that the flush
    may still add; in how many places each stream may be open in this epoch. *)
Record st := St {
  ready : Z; hp : list Z; mp : list Z; old : list Z; young : list Z; vict : option Z;
  buf : Z; half : Z; gone : Z; fresh : Z; rest : Z; hbuf : Z; due : Z; hw : Z; mw : Z }.

Definition owed (t : st) : Z := match vict t with Some l => l | None => 0 end.
Definition busy (t : st) : Z := match vict t with Some _ => 1 | None => 0 end.

(** Pages that the streams can still program ([Ftl::ready]). *)
Definition room (d : disk) (t : st) : Z :=
  D d * ready t + sum (hp t) + sum (mp t) - D d * (hw t + mw t).

(** A stream programs a page: at a place with room; in the next block, where the place is full; or in one more place. *)
Inductive take (d : disk) (w r : Z) : list Z → Z → list Z → bool → Prop :=
  | t_here l x k : 0 < x → take d w r (l ++ x :: k) r (l ++ (x - 1) :: k) false
  | t_next l k : 0 < r → take d w r (l ++ 0 :: k) (r - 1) (l ++ (D d - 1) :: k) true
  | t_more l : 0 < r → len l < w → take d w r l (r - 1) (D d - 1 :: l) false.
(** The full block is used, or has no valid sector any more. *)
Inductive closed (d : disk) (y : list Z) (f : Z) : bool → list Z → Z → Prop :=
  | c_no : closed d y f false y f
  | c_used v : 0 < v ≤ s d * D d → closed d y f true (v :: y) f
  | c_gone : closed d y f true y (f + 1).

(** More than the reserve. *)
Definition plenty (d : disk) (t : st) : Prop := D d * (reserve d + 1) + own d ≤ room d t.
(** There is room for the rest of the epoch, and for moving [v] sectors besides. *)
Definition can_move (d : disk) (t : st) (v : Z) : Prop :=
  rest t + hbuf t + s d * own d + buf t + v ≤ s d * room d t.

(** The collector's steps. *)
Inductive cstep (d : disk) (t : st) : st → Prop :=
  (** A victim is chosen. *)
  | s_begin l v k : vict t = None → old t = l ++ v :: k → can_move d t v → v ≤ N d ∨ plenty d t →
      cstep d t (St (ready t) (hp t) (mp t) (l ++ k) (young t) (Some v) (buf t) (half t) (gone t) (fresh t) (rest t) (hbuf t) (due t) (hw t) (mw t))
  (** One of its sectors goes to the buffer, or is found to be elsewhere. *)
  | s_push l : vict t = Some l → 0 < l → buf t < s d →
      cstep d t (St (ready t) (hp t) (mp t) (old t) (young t) (Some (l - 1)) (buf t + 1) (half t) (gone t) (fresh t) (rest t) (hbuf t) (due t) (hw t) (mw t))
  | s_skip l : vict t = Some l → 0 < l →
      cstep d t (St (ready t) (hp t) (mp t) (old t) (young t) (Some (l - 1)) (buf t) (half t) (gone t) (fresh t) (rest t) (hbuf t) (due t) (hw t) (mw t))
  (** All were looked at. *)
  | s_done : vict t = Some 0 →
      cstep d t (St (ready t) (hp t) (mp t) (old t) (young t) None (buf t) (half t + 1) (gone t) (fresh t) (rest t) (hbuf t) (due t) (hw t) (mw t))
  (** The buffer is programmed: full, or at a flush's end, or while there is plenty of room; blocks are empty now. *)
  | s_seal r q z y f : buf t = s d → take d (mw t) (ready t) (mp t) r q z → closed d (young t) (fresh t) z y f →
      cstep d t (St r (hp t) q (old t) y (vict t) 0 0 (gone t + half t) f (rest t) (hbuf t) (due t) (hw t) (mw t))
  | s_part r q z y f : 0 < due t → take d (mw t) (ready t) (mp t) r q z → closed d (young t) (fresh t) z y f →
      cstep d t (St r (hp t) q (old t) y (vict t) 0 0 (gone t + half t) f (rest t) (hbuf t) (due t - 1) (hw t) (mw t))
  | s_level r q z y f : vict t = None → plenty d t → take d (mw t) (ready t) (mp t) r q z → closed d (young t) (fresh t) z y f →
      cstep d t (St r (hp t) q (old t) y (vict t) 0 0 (gone t + half t) f (rest t) (hbuf t) (due t) (hw t) (mw t))
  | s_empty : buf t = 0 →
      cstep d t (St (ready t) (hp t) (mp t) (old t) (young t) (vict t) 0 0 (gone t + half t) (fresh t) (rest t) (hbuf t) (due t) (hw t) (mw t)).

(** The host's, and what its writes do to blocks. *)
Inductive hstep (d : disk) (t : st) : st → Prop :=
  | s_write : 0 < rest t → hbuf t < s d →
      hstep d t (St (ready t) (hp t) (mp t) (old t) (young t) (vict t) (buf t) (half t) (gone t) (fresh t) (rest t - 1) (hbuf t + 1) (due t) (hw t) (mw t))
  | s_trim b : 0 < rest t → 0 ≤ b ≤ hbuf t →
      hstep d t (St (ready t) (hp t) (mp t) (old t) (young t) (vict t) (buf t) (half t) (gone t) (fresh t) (rest t - 1) b (due t) (hw t) (mw t))
  | s_page r q z y f : hbuf t = s d → take d (hw t) (ready t) (hp t) r q z → closed d (young t) (fresh t) z y f →
      hstep d t (St r q (mp t) (old t) y (vict t) (buf t) (half t) (gone t) f (rest t) 0 (due t) (hw t) (mw t))
  (** The flush's own pages: the host's last one, and those of trims. *)
  | s_own r q z y f : 0 < due t → take d (hw t) (ready t) (hp t) r q z → closed d (young t) (fresh t) z y f →
      hstep d t (St r q (mp t) (old t) y (vict t) (buf t) (half t) (gone t) f (rest t) 0 (due t - 1) (hw t) (mw t))
  (** A sector is written or trimmed that a used block holds. *)
  | s_lose l v k : old t = l ++ v :: k → 1 < v →
      hstep d t (St (ready t) (hp t) (mp t) (l ++ (v - 1) :: k) (young t) (vict t) (buf t) (half t) (gone t) (fresh t) (rest t) (hbuf t) (due t) (hw t) (mw t))
  | s_last l k : old t = l ++ 1 :: k →
      hstep d t (St (ready t) (hp t) (mp t) (l ++ k) (young t) (vict t) (buf t) (half t) (gone t + 1) (fresh t) (rest t) (hbuf t) (due t) (hw t) (mw t))
  | s_young l v k : young t = l ++ v :: k → 1 < v →
      hstep d t (St (ready t) (hp t) (mp t) (old t) (l ++ (v - 1) :: k) (vict t) (buf t) (half t) (gone t) (fresh t) (rest t) (hbuf t) (due t) (hw t) (mw t))
  | s_young_last l k : young t = l ++ 1 :: k →
      hstep d t (St (ready t) (hp t) (mp t) (old t) (l ++ k) (vict t) (buf t) (half t) (gone t) (fresh t + 1) (rest t) (hbuf t) (due t) (hw t) (mw t))
  | s_emptied l : vict t = Some l →
      hstep d t (St (ready t) (hp t) (mp t) (old t) (young t) None (buf t) (half t) (gone t + 1) (fresh t) (rest t) (hbuf t) (due t) (hw t) (mw t))
  (** The host flushes: no more writes. *)
  | s_stop :
      hstep d t (St (ready t) (hp t) (mp t) (old t) (young t) (vict t) (buf t) (half t) (gone t) (fresh t) 0 (hbuf t) (due t) (hw t) (mw t)).

Definition step (d : disk) (t u : st) : Prop := cstep d t u ∨ hstep d t u.

(** Numbers are what they count, and no block is lost. *)
Record sane (d : disk) (t : st) : Prop := Sane {
  n_hp : Forall (λ x, 0 ≤ x ≤ D d) (hp t); n_mp : Forall (λ x, 0 ≤ x ≤ D d) (mp t);
  n_old : Forall (λ v, 0 < v ≤ s d * D d) (old t); n_young : Forall (λ v, 0 < v ≤ s d * D d) (young t);
  n_vict l : vict t = Some l → 0 ≤ l ≤ s d * D d;
  n_buf : 0 ≤ buf t ≤ s d; n_hbuf : 0 ≤ hbuf t ≤ s d;
  n_half : 0 ≤ half t; n_gone : 0 ≤ gone t; n_fresh : 0 ≤ fresh t; n_rest : 0 ≤ rest t ≤ W d;
  n_hosts : len (hp t) ≤ hw t ≤ hosts d; n_moves : len (mp t) ≤ mw t ≤ moves d; n_one : 1 ≤ hw t ∧ 1 ≤ mw t;
  n_due : 0 ≤ due t ≤ own d; n_epoch : rest t + hbuf t ≤ W d;
  n_all : ready t + len (hp t) + len (mp t) + len (old t) + len (young t) + busy t + half t + gone t + fresh t = blocks d }.

(** With [k] victims more: there is room for them and for what the epoch still needs; and when all that is done
    and committed, there is the reserve. *)
Record goes (d : disk) (k : Z) (t : st) : Prop := Goes {
  g_room : rest t + hbuf t + s d * due t + buf t + owed t + k * N d ≤ s d * room d t;
  g_back : reserve d * (s d * D d) + rest t + hbuf t + s d * due t + buf t + owed t + k * N d ≤
    s d * room d t + s d * D d * (gone t + half t + busy t) + k * (s d * D d) }.
Definition good (d : disk) (t : st) : Prop := ∃ k, 0 ≤ k ≤ K d ∧ goes d k t.

(** ** A page takes one from the room *)
Lemma take_room d w r l r' l' z : take d w r l r' l' z → D d * r' + sum l' = D d * r + sum l - 1.
Proof. destruct 1; rewrite ?sum_app, ?sum_cons; lia. Qed.
Lemma take_blocks d w r l r' l' z : take d w r l r' l' z → r' + len l' + (if z then 1 else 0) = r + len l.
Proof. destruct 1; cbn; rewrite ?len_app, ?len_cons, ?len_nil; lia. Qed.
Lemma take_len d w r l r' l' z : len l ≤ w → take d w r l r' l' z → len l' ≤ w.
Proof. intros ?. destruct 1; rewrite ?len_app, ?len_cons, ?len_nil in *; lia. Qed.
Lemma take_pages d w r l r' l' z : 0 < D d → Forall (λ x, 0 ≤ x ≤ D d) l → take d w r l r' l' z → Forall (λ x, 0 ≤ x ≤ D d) l'.
Proof.
  intros HD H. destruct 1; rewrite ?Forall_app, ?Forall_cons in *; intuition lia.
Qed.
Lemma sum_most d l : Forall (λ x, 0 ≤ x ≤ D d) l → sum l ≤ D d * len l.
Proof.
  induction 1 as [|x l Hx _ IH]; [unfold len, sum; simpl; lia|]. rewrite len_cons, sum_cons. nia.
Qed.

(** Whichever place's turn it is, of either stream: a page finds its block. *)
Lemma stream_finds d w r l v other : 0 < D d → Forall (λ x, 0 ≤ x ≤ D d) l → Forall (λ x, 0 ≤ x ≤ D d) other →
  len l ≤ w → len other ≤ v → 0 ≤ D d * r + sum l + sum other - D d * (w + v) →
  (len l < w → ∃ r' l' z, take d w r l r' l' z) ∧
  (∀ a x k, l = a ++ x :: k → ∃ r' y z, take d w r l r' (a ++ y :: k) z).
Proof.
  intros HD Hl Ho Hw Hv Hroom. pose proof (sum_most d _ Ho). pose proof (sum_most d _ Hl).
  split.
  - intros Hlt. assert (0 < r) by nia. eauto using take.
  - intros a x k ->. apply Forall_app in Hl as [Ha Hx]. apply Forall_cons in Hx as [Hx Hk].
    destruct (decide (0 < x)) as [Hp|Hp]; [eauto using take|].
    assert (x = 0) as -> by lia. pose proof (sum_most d _ Ha). pose proof (sum_most d _ Hk).
    rewrite ?sum_app, ?sum_cons, ?len_app, ?len_cons in *. pose proof (len_pos a). pose proof (len_pos k).
    assert (0 < r) by nia. eauto using take.
Qed.
Theorem page_finds_a_block d t : fits d → sane d t → good d t →
  (len (hp t) < hw t → ∃ r l z, take d (hw t) (ready t) (hp t) r l z) ∧
  (len (mp t) < mw t → ∃ r l z, take d (mw t) (ready t) (mp t) r l z) ∧
  (∀ a x k, hp t = a ++ x :: k → ∃ r y z, take d (hw t) (ready t) (hp t) r (a ++ y :: k) z) ∧
  (∀ a x k, mp t = a ++ x :: k → ∃ r y z, take d (mw t) (ready t) (mp t) r (a ++ y :: k) z).
Proof.
  intros F H (k & Hk & [G _]).
  pose proof (n_rest d t H). pose proof (n_hbuf d t H). pose proof (n_due d t H). pose proof (n_buf d t H).
  assert (0 ≤ owed t). { unfold owed. destruct (vict t) as [l|] eqn:E; [|lia]. pose proof (n_vict d t H l E). lia. }
  pose proof (f_s d F). pose proof (f_N d F). pose proof (f_D d F).
  assert (0 ≤ room d t) as Hroom by nia.
  unfold room in Hroom.
  pose proof (n_hosts d t H). pose proof (n_moves d t H).
  destruct (stream_finds d (hw t) (ready t) (hp t) (mw t) (mp t)) as [? ?]; [lia|apply H|apply H|lia..|].
  destruct (stream_finds d (mw t) (ready t) (mp t) (hw t) (hp t)) as [? ?]; [lia|apply H|apply H|lia..|].
  done.
Qed.

(** ** What an epoch needs stays there *)
Lemma closed_len d y f z y' f' : closed d y f z y' f' → len y' + f' = len y + f + (if z then 1 else 0).
Proof. destruct 1; cbn; rewrite ?len_cons; lia. Qed.
Lemma closed_sane d y f z y' f' : closed d y f z y' f' → Forall (λ v, 0 < v ≤ s d * D d) y → 0 ≤ f →
  Forall (λ v, 0 < v ≤ s d * D d) y' ∧ 0 ≤ f'.
Proof. destruct 1; intros ??; rewrite ?Forall_cons; intuition lia. Qed.

Lemma sane_step d t u : fits d → sane d t → step d t u → sane d u.
Proof.
  intros F [Hhp Hmp Hold Hyoung Hvict Hbuf Hhbuf Hhalf Hgone Hfresh Hrest Hhosts Hmoves Hone Hdue Hepoch Hall] Hstep.
  pose proof (f_D d F). pose proof (f_hosts d F). pose proof (f_moves d F). pose proof (f_s d F).
  destruct Hstep as [Hc|Hh]; [destruct Hc|destruct Hh]; unfold busy in *.
  all: repeat match goal with
    | H : vict ?e = Some ?l |- _ => pose proof (Hvict _ H); rewrite H in *; clear H
    | H : vict ?e = None |- _ => rewrite H in *; clear H
    | H : old ?e = _ |- _ => rewrite H, ?Forall_app, ?Forall_cons, ?len_app, ?len_cons in *; clear H
    | H : young ?e = _ |- _ => rewrite H, ?Forall_app, ?Forall_cons, ?len_app, ?len_cons in *; clear H
    | H : take _ _ _ _ _ _ _ |- _ => pose proof (take_blocks _ _ _ _ _ _ _ H);
        (pose proof (take_pages _ _ _ _ _ _ _ (f_D d F) Hmp H); pose proof (take_len _ _ _ _ _ _ _ (proj1 Hmoves) H)) ||
        (pose proof (take_pages _ _ _ _ _ _ _ (f_D d F) Hhp H); pose proof (take_len _ _ _ _ _ _ _ (proj1 Hhosts) H)); clear H
    | H : closed _ _ _ _ _ _ |- _ => pose proof (closed_len _ _ _ _ _ _ H); destruct (closed_sane _ _ _ _ _ _ H Hyoung Hfresh); clear H
    end.
  all: constructor; cbn; rewrite ?Forall_app, ?Forall_cons, ?len_app, ?len_cons in *; try done; try lia; try (intuition lia).
  all: try (intros ? [= <-]; lia); try (intros ? Hv; apply Hvict in Hv; lia).
  all: unfold busy; cbn; lia.
Qed.


Lemma owed_bound d t : sane d t → 0 ≤ owed t ≤ s d * D d * busy t.
Proof.
  intros H. unfold owed, busy. destruct (vict t) as [l|] eqn:E; [|split; lia]. pose proof (n_vict d t H l E). lia.
Qed.
Ltac sized d t F H :=
  pose proof (f_s d F); pose proof (f_D d F); pose proof (f_N d F); pose proof (f_own d F); pose proof (f_K d F);
  pose proof (n_rest d t H); pose proof (n_hbuf d t H); pose proof (n_buf d t H); pose proof (n_due d t H); pose proof (n_epoch d t H);
  pose proof (n_half d t H); pose proof (n_gone d t H); pose proof (owed_bound d t H).

(** The room after a step: less by the page that was programmed, if one was. *)
Ltac rooms d t :=
  match goal with
  | H : take _ _ _ _ _ _ _ |- context [room d ?u] =>
      assert (room d u = room d t - 1) as -> by (apply take_room in H; unfold room; cbn; lia)
  | |- context [room d ?u] => assert (room d u = room d t) as -> by (unfold room; cbn; lia)
  end.

(** What the host does leaves as many victims to move. *)
Lemma goes_host d k t u : fits d → sane d t → goes d k t → hstep d t u → goes d k u.
Proof.
  intros F H [G1 G2] Hs. sized d t F H.
  destruct Hs; constructor; rooms d t; unfold owed, busy in *; cbn in *.
  all: repeat match goal with H : vict ?e = _ |- _ => rewrite H in *; clear H end.
  all: first [lia|nia].
Qed.

(** The products that [plenty] is about, in terms that are linear beside them. *)
Lemma plenty_spread d t : fits d → sane d t → plenty d t →
  reserve d * (s d * D d) + s d * D d + s d * own d ≤ s d * room d t ∧ s d * due t ≤ s d * own d ∧
  0 ≤ s d * D d * (gone t + half t).
Proof.
  intros F H Hp. sized d t F H. unfold plenty in Hp.
  assert (s d * (D d * (reserve d + 1) + own d) ≤ s d * room d t) by (apply Z.mul_le_mono_nonneg_l; lia).
  assert (s d * due t ≤ s d * own d) by (apply Z.mul_le_mono_nonneg_l; lia).
  split; [lia|]. split; [done|]. apply Z.mul_nonneg_nonneg; [apply Z.mul_nonneg_nonneg|]; lia.
Qed.

(** And so does what the collector does: a victim begun is one less, and one of any size, begun while there is plenty
    of room, leaves room for as many as there can be. *)
Inductive after (d : disk) (k : Z) : Z → Prop := a_same : after d k k | a_less : after d k (Z.max 0 (k - 1)) | a_all : after d k (K d).
Lemma goes_collector d k t u : fits d → sane d t → 0 ≤ k → goes d k t → cstep d t u → ∃ j, after d k j ∧ goes d j u.
Proof.
  intros F H Hk [G1 G2] Hs. sized d t F H. pose proof (f_produced d F). pose proof (f_room d F).
  assert (s d ≤ s d * D d) by nia.
  destruct Hs as [l v k' Hv Ho Hm Hc|l Hv|l Hv|Hv|r q z y f Hb Ht Hc|r q z y f Hb Ht Hc|r q z y f Hv Hb Ht Hc|Hb].
  2-6,8: exists k; split; [constructor|]; constructor; rooms d t; unfold owed, busy in *; cbn in *;
    try rewrite Hv in *; first [lia|nia].
  - assert (0 < v ≤ s d * D d). { pose proof (n_old d t H) as Hf. rewrite Ho in Hf. rewrite Forall_app, Forall_cons in Hf. tauto. }
    unfold can_move, plenty, owed, busy in *. rewrite Hv in *.
    destruct Hc as [Hc|Hc].
    + exists (Z.max 0 (k - 1)). split; [constructor|].
      destruct (decide (k = 0)) as [->|Hn].
      * constructor; rooms d t; unfold owed, busy; cbn; first [lia|nia].
      * replace (Z.max 0 (k - 1)) with (k - 1) by lia. constructor; rooms d t; unfold owed, busy; cbn; first [lia|nia].
    + exists (K d). split; [constructor|]. destruct (plenty_spread d t F H Hc) as (? & ? & ?).
      constructor; rooms d t; unfold owed, busy; cbn; lia.
  - exists (K d). split; [constructor|]. destruct (plenty_spread d t F H Hb) as (? & ? & ?). unfold owed, busy in *. rewrite Hv in *.
    assert (s d * 1 ≤ s d * own d) by (apply Z.mul_le_mono_nonneg_l; lia).
    constructor; rooms d t; unfold owed, busy; cbn; rewrite ?Hv; lia.
Qed.

Theorem good_step d t u : fits d → sane d t → good d t → step d t u → sane d u ∧ good d u.
Proof.
  intros F H (k & Hk & G) Hs. split; [by eapply sane_step|].
  destruct Hs as [Hs|Hs].
  - destruct (goes_collector d k t u) as (j & Hj & Gj); [done|done|lia|done|done|].
    exists j. split; [|done]. pose proof (f_K d F). destruct Hj; lia.
  - exists k. split; [done|]. by eapply goes_host.
Qed.

(** ** The collector finds its victims *)
Lemma begun_less d k t u v : fits d → sane d t → 0 ≤ k → goes d k t → cstep d t u → vict t = None → vict u = Some v → v ≤ N d →
  goes d (Z.max 0 (k - 1)) u.
Proof.
  intros F H Hk [G1 G2] Hs Hv Hu Hn. sized d t F H.
  destruct Hs; cbn in *; try congruence. injection Hu as ->.
  assert (0 < v ≤ s d * D d) as Hval.
  { pose proof (n_old d t H) as Hf. rewrite H14 in Hf. rewrite Forall_app, Forall_cons in Hf. tauto. }
  unfold can_move, owed, busy in *. rewrite Hv in *.
  destruct (decide (k = 0)) as [->|Hk0]; [|replace (Z.max 0 (k - 1)) with (k - 1) by lia];
    constructor; rooms d t; unfold owed, busy; cbn; first [lia|nia].
Qed.

(** Room that there would be, were all committed that has been moved, is short of the reserve. *)
Definition short (d : disk) (t : st) : Prop :=
  s d * room d t + s d * D d * (gone t + half t) < reserve d * (s d * D d) + hbuf t + s d * due t + buf t.

(** (2) and the pigeonhole: then a block has at most [N] valid sectors. Assumed: valid sectors are those of the
    disk, for no two share a place; at most [newest] blocks are newer than the durable delta pages. *)
Theorem victim_exists d t : fits d → sane d t → vict t = None → short d t → sum (old t) ≤ L d → len (young t) + fresh t ≤ newest d →
  ∃ l v k, old t = l ++ v :: k ∧ v ≤ N d.
Proof.
  intros F H Hv Hs Hsum Hnew. sized d t F H. pose proof (f_used d F). pose proof (f_margin d F).
  pose proof (n_all d t H) as Hall. unfold busy in Hall. rewrite Hv in Hall.
  pose proof (n_hosts d t H). pose proof (n_moves d t H).
  assert (0 ≤ sum (hp t) ∧ 0 ≤ sum (mp t)) as [Hp Hm].
  { assert (∀ l, Forall (λ x, 0 ≤ x ≤ D d) l → 0 ≤ sum l) as Hpos.
    { induction 1 as [|x l Hx _ IH]; [done|]. rewrite sum_cons. lia. }
    split; apply Hpos; apply H. }
  assert (U d - newest d ≤ len (old t)) as Hlen.
  { unfold short, room in Hs.
    set (S := s d * D d) in *.
    assert (0 < S) by (unfold S; nia).
    assert (S * (ready t + gone t + half t) < S * (reserve d + margin d + hw t + mw t)).
    { assert (0 ≤ s d * sum (hp t)) by nia. assert (0 ≤ s d * sum (mp t)) by nia.
      assert (s d * due t ≤ s d * own d) by nia.
      assert (s d * (D d * ready t + sum (hp t) + sum (mp t) - D d * (hw t + mw t)) =
        S * ready t + s d * sum (hp t) + s d * sum (mp t) - S * (hw t + mw t)) as Heq by (unfold S; lia).
      rewrite Heq in Hs. lia. }
    assert (ready t + gone t + half t < reserve d + margin d + hw t + mw t) by nia. lia. }
  destruct (pigeonhole d (old t) F Hlen) as (v & Hin & Hle); [|done|].
  { intros v Hin. pose proof (n_old d t H) as Ho. rewrite Forall_forall in Ho. specialize (Ho v Hin). lia. }
  apply elem_of_list_split in Hin as (l & k & ->). eauto.
Qed.

(** What a flush does before it commits ([Ftl::reclaim]) ends when no such block is there or may be moved; then it needs none. *)
Theorem reclaim_ends d k t : fits d → sane d t → 0 ≤ k → goes d k t → rest t = 0 → vict t = None → due t = own d →
  sum (old t) ≤ L d → len (young t) + fresh t ≤ newest d →
  (∀ l v r, old t = l ++ v :: r → v ≤ N d → ¬ can_move d t v) → goes d 0 t.
Proof.
  intros F H Hk [G1 G2] Hrest Hv Hdue Hsum Hnew Hstuck. sized d t F H.
  unfold owed, busy in *. rewrite Hv in *.
  destruct (decide (k = 0)) as [->|Hk0]; [by constructor; unfold owed, busy; rewrite Hv|].
  destruct (Z_lt_dec (s d * room d t + s d * D d * (gone t + half t)) (reserve d * (s d * D d) + hbuf t + s d * due t + buf t)) as [Hs|Hs].
  - exfalso. destruct (victim_exists d t) as (l & v & r & Ho & Hn); try done.
    apply (Hstuck l v r Ho Hn). unfold can_move. nia.
  - constructor; unfold owed, busy; rewrite Hv; nia.
Qed.

(** ** From one epoch to the next *)
(** A flush commits when what it moved suffices, whether because it moved all that was needed or because it sees so. *)
Definition ended (d : disk) (t : st) : Prop :=
  (vict t = None ∧ half t = 0 ∧ goes d 0 t) ∨ D d * reserve d ≤ room d t + D d * gone t.
(** Behind the commit: blocks without valid sectors are erasable, unless no durable delta page says what they said;
    the next epoch begins; a block that is half emptied goes on only if it may. *)
Record next (d : disk) (t u : st) : Prop := Next {
  x_fresh : 0 ≤ fresh u ≤ fresh t; x_ready : ready u = ready t + gone t + (fresh t - fresh u);
  x_hp : hp u = hp t; x_mp : mp u = mp t; x_hw : hw u = hw t; x_mw : mw u = mw t;
  x_rest : rest u = W d; x_hbuf : hbuf u = 0; x_due : due u = own d;
  x_vict : vict u = None ∨ owed u ≤ N d ∨ plenty d u; x_sane : sane d u }.

Lemma epoch_begins d t : fits d → sane d t → D d * reserve d ≤ room d t → hbuf t = 0 →
  vict t = None ∨ owed t ≤ N d ∨ plenty d t → good d t.
Proof.
  intros F H Hroom Hb Hv. sized d t F H. pose proof (f_produced d F). pose proof (f_room d F). pose proof (f_W d F).
  assert (1 ≤ K d) by nia. assert (reserve d * (s d * D d) ≤ s d * room d t) by nia.
  assert (s d * due t ≤ s d * own d) by nia. assert (0 ≤ s d * D d * (gone t + half t)) by nia.
  destruct (vict t) as [l|] eqn:E.
  - destruct Hv as [Hv|[Hv|Hv]]; [done| |].
    + exists (K d - 1). split; [lia|]. unfold owed, busy in *. rewrite E in *.
      constructor; unfold owed, busy; rewrite E; lia.
    + exists (K d). split; [lia|]. unfold plenty, owed, busy in *. rewrite E in *.
      assert (s d * (D d * (reserve d + 1) + own d) ≤ s d * room d t) by nia.
      constructor; unfold owed, busy; rewrite E; lia.
  - exists (K d). split; [lia|]. unfold owed, busy in *. rewrite E in *.
    constructor; unfold owed, busy; rewrite E; lia.
Qed.

(** (1) and (2): after a flush the reserve is there again. *)
Theorem reserve_again d t u : fits d → sane d t → ended d t → next d t u → D d * reserve d ≤ room d u ∧ good d u.
Proof.
  intros F H He [Hf Hr Hhp Hmp Hhw Hmw Hrest Hb Hdue Hv Hs]. sized d t F H.
  assert (room d u = room d t + D d * gone t + D d * (fresh t - fresh u)) as Hroom.
  { unfold room. rewrite Hr, Hhp, Hmp, Hhw, Hmw. lia. }
  assert (D d * reserve d ≤ room d u) as Hok.
  { destruct He as [(Ev & Eh & [_ G])|He]; [|nia].
    unfold owed, busy in G. rewrite Ev, Eh in G.
    assert (0 ≤ s d * due t) by nia.
    assert (reserve d * (s d * D d) ≤ s d * room d t + s d * D d * gone t) as Hs1 by lia.
    assert (s d * (D d * reserve d) ≤ s d * (room d t + D d * gone t)) as Hs2.
    { rewrite Z.mul_add_distr_l, Z.mul_assoc, (Z.mul_comm _ (reserve d)), Z.mul_assoc. lia. }
    apply Z.mul_le_mono_pos_l in Hs2; [|done]. nia. }
  split; [done|]. by apply epoch_begins.
Qed.

(** A disk's life, from an epoch that begins with the reserve: no page ever finds no block. *)
Inductive life (d : disk) : st → Prop :=
  | life_begins t : sane d t → D d * reserve d ≤ room d t → hbuf t = 0 → vict t = None → life d t
  | life_goes t u : life d t → step d t u → life d u
  | life_on t u : life d t → ended d t → next d t u → life d u.
Lemma life_good d t : fits d → life d t → sane d t ∧ good d t.
Proof.
  intros F. induction 1 as [t H Hr Hb Hv|t u _ [H G] Hs|t u _ [H G] He Hn].
  - split; [done|]. apply epoch_begins; auto.
  - by eapply good_step.
  - split; [apply Hn|]. by eapply reserve_again.
Qed.
Theorem never_runs_out d t : fits d → life d t →
  (len (hp t) < hw t → ∃ r l z, take d (hw t) (ready t) (hp t) r l z) ∧
  (len (mp t) < mw t → ∃ r l z, take d (mw t) (ready t) (mp t) r l z) ∧
  (∀ a x k, hp t = a ++ x :: k → ∃ r y z, take d (hw t) (ready t) (hp t) r (a ++ y :: k) z) ∧
  (∀ a x k, mp t = a ++ x :: k → ∃ r y z, take d (mw t) (ready t) (mp t) r (a ++ y :: k) z).
Proof. intros F Hl. destruct (life_good d t F Hl). by apply page_finds_a_block. Qed.

(** There is such a disk, and such a life. *)
Definition small : disk := Disk 1 4 8 3 6 2 20 10 29 32 2 6 1 1.
Theorem small_fits : fits small.
Proof. constructor; cbn; lia. Qed.
Theorem small_lives : ∃ t, life small t ∧ can_move small t 2 ∧ 2 ∈ old t.
Proof.
  exists (St 12 [] [] (replicate 15 2) [1; 1] None 0 0 0 3 8 0 3 1 1).
  split; [|split; [by unfold can_move; vm_compute|by left]].
  apply life_begins; [|by vm_compute..].
  constructor; cbn; rewrite ?Forall_cons; try done; try lia; repeat constructor; try lia.
  all: vm_compute; congruence.
Qed.
