(** There is a run in which all of it happens: a term is opened, an epoch is acknowledged, a second
    one is on its way; another machine claims, seals before it, opens with what was acknowledged,
    publishes a checkpoint and deletes the first epoch's slot. The theorems are not empty. *)
From stdpp Require Import prelude list.
From Steadfast Require Import StoreFence.

Section witness.
Context {V N : Type} (v w : V).
Notation state := (@state V N).
Implicit Types x y : state.

(** What stays known. *)
Record keeps x y : Prop := Keeps {
  k_past h : past x h → past y h;
  k_was t s b : was x t s b → was y t s b;
  k_sent r : sent x r → sent y r;
  k_mine i t s u : mine x i t s u → mine y i t s u;
  k_acked t s u : acked x t s u → acked y t s u;
  k_opened t L : opened x t L → opened y t L }.
Lemma keeps_trans x y z : keeps x y → keeps y z → keeps x z.
Proof. intros [] []. constructor; auto. Qed.

Lemma go x y : reachable x → step x y → reachable y.
Proof. intros. by eapply rtc_r. Qed.
Lemma do_mine x i t s u : reachable x → (∀ z, ¬ mine x i t s z) →
  ∃ y, reachable y ∧ mine y i t s u ∧
    (∀ i' t' s' z, mine y i' t' s' z → mine x i' t' s' z ∨ (i' = i ∧ t' = t ∧ s' = s ∧ z = u)) ∧
    keeps x y ∧ hd y = hd x ∧ slots y = slots x.
Proof.
  intros R Hn. eexists. split; [eapply go; [exact R|by apply (s_mine _ i t s u)]|]. simpl.
  split_and!; auto. constructor; simpl; auto.
Qed.
Lemma do_send x r : reachable x → ok x r →
  ∃ y, reachable y ∧ sent y r ∧ keeps x y ∧ hd y = hd x ∧ slots y = slots x.
Proof.
  intros R Ho. eexists. split; [eapply go; [exact R|by apply (s_send _ r)]|]. simpl.
  split_and!; auto. constructor; simpl; auto.
Qed.
Lemma do_swap x to : reachable x → ok x (RSwap (hd x) to) →
  ∃ y, reachable y ∧ hd y = to ∧ past y to ∧ keeps x y ∧ slots y = slots x.
Proof.
  intros R Ho. destruct (do_send x _ R Ho) as (y&Ry&Hs&K&Hh&E).
  eexists. split; [eapply go; [exact Ry|by apply (s_swap _ (hd x) to)]|]. simpl.
  split_and!; auto. eapply keeps_trans; [exact K|]. constructor; simpl; auto.
Qed.
Lemma do_put x t s b : reachable x → ok x (RPut t s b) → slots x t s = None →
  ∃ y, reachable y ∧ was y t s b ∧ keeps x y ∧ hd y = hd x ∧ slots y = upd (slots x) t s (Some b).
Proof.
  intros R Ho Hn. destruct (do_send x _ R Ho) as (y&Ry&Hs&K&Hh&E).
  eexists. split; [eapply go; [exact Ry|apply (s_put _ t s b); [done|by rewrite E]]|]. simpl.
  split_and!; auto; [|by rewrite E]. eapply keeps_trans; [exact K|]. constructor; simpl; auto.
Qed.
Lemma do_ack x h s u : reachable x → past x h → top h = cur h → length (ch h) ≤ s → mine x (who h) (cur h) s u →
  (∀ k, length (ch h) ≤ k ≤ s → ∃ z, mine x (who h) (cur h) k z ∧ was x (cur h) k (Ep z)) →
  ∃ y, reachable y ∧ acked y (cur h) s u ∧ keeps x y ∧ hd y = hd x ∧ slots y = slots x.
Proof.
  intros R ?????. eexists. split; [eapply go; [exact R|by apply (s_ack _ (who h) h s u)]|]. simpl.
  split_and!; auto. constructor; simpl; auto.
Qed.
Lemma do_opened x h g L : reachable x → past x h → top h = cur h → past x g → top g = top h → who g = who h →
  cur g < top g → scan x g (length (ch h)) L →
  ∃ y, reachable y ∧ opened y (cur h) L ∧ keeps x y ∧ hd y = hd x ∧ slots y = slots x.
Proof.
  intros R ???????. eexists. split; [eapply go; [exact R|by apply (s_opened _ (who h) h g L)]|]. simpl.
  split_and!; auto. constructor; simpl; auto.
Qed.
Lemma do_delete x t s : reachable x → ok x (RDel (Sl t s)) →
  ∃ y, reachable y ∧ keeps x y ∧ hd y = hd x ∧ slots y = upd (slots x) t s None.
Proof.
  intros R Ho. destruct (do_send x _ R Ho) as (y&Ry&Hs&K&Hh&E).
  eexists. split; [eapply go; [exact Ry|by apply (s_del_slot _ t s)]|]. simpl.
  split_and!; auto; [|by rewrite E]. eapply keeps_trans; [exact K|]. constructor; simpl; auto.
Qed.

Definition h1 : @head V N := claimed 1 fresh.
Definition h2 := opened_at 0 h1.
Definition h3 := claimed 2 h2.
Definition h4 := opened_at 1 h3.
Definition h5 := published 1 [v] [] h4.

Lemma chosen : ∃ x, reachable x ∧ hd x = fresh ∧ past x fresh ∧ mine x 1 2 0 v ∧ mine x 1 2 1 w ∧
  slots x = λ _ _, None.
Proof.
  destruct (do_mine init 1 2 0 v) as (x&R&M&Mi&K&E&S); [apply rtc_refl|intros ? []|].
  destruct (do_mine x 1 2 1 w) as (y&R'&M'&_&K'&E'&S'); [done| |].
  { intros z [[]|(?&?&?&?)]%Mi. done. }
  exists y. rewrite E', S', E, S. split_and!; try done.
  - by apply (k_past _ _ K'), (k_past _ _ K).
  - by apply (k_mine _ _ K').
Qed.
(** The later facts of earlier states. *)
Local Ltac later :=
  repeat match goal with
  | K : keeps ?x ?y, H : past ?x _ |- _ => apply (k_past _ _ K) in H
  | K : keeps ?x ?y, H : was ?x _ _ _ |- _ => apply (k_was _ _ K) in H
  | K : keeps ?x ?y, H : sent ?x _ |- _ => apply (k_sent _ _ K) in H
  | K : keeps ?x ?y, H : mine ?x _ _ _ _ |- _ => apply (k_mine _ _ K) in H
  | K : keeps ?x ?y, H : acked ?x _ _ _ |- _ => apply (k_acked _ _ K) in H
  | K : keeps ?x ?y, H : opened ?x _ _ |- _ => apply (k_opened _ _ K) in H
  end;
  repeat match goal with K : keeps _ _ |- _ => clear K end.

Theorem fenced_runs_exist : ∃ x,
  reachable x ∧ acked x 2 0 v ∧ opened x 3 [v] ∧
  sent x (RPut 2 1 (Ep w)) ∧ slots x 2 1 = Some Seal ∧ slots x 2 0 = None ∧ hd x = h5.
Proof.
  destruct chosen as (x0&R0&E0&P0&M0&M1&S0).
  (* The first machine claims, seals and opens. *)
  destruct (do_swap x0 h1) as (x1&R1&E1&P1&K&S1); [done|rewrite E0; by apply (ok_claim _ 1)|]. later.
  destruct (do_put x1 1 0 Seal) as (x2&R2&W2&K&E2&S2);
    [done|apply (ok_seal _ h1); [done|simpl; lia]|by rewrite S1, S0|]. later.
  destruct (do_swap x2 h2) as (x3&R3&E3&P3&K&S3); [done| |].
  { rewrite E2, E1. apply (ok_open _ 1 h1 h1 0 []); try done; try (simpl; lia).
    all: unfold scan; simpl; split_and!; try done; lia. }
  later.
  (* It sends two epochs; the first lands and is acknowledged. *)
  destruct (do_send x3 (RPut 2 1 (Ep w))) as (x4&R4&T4&K&E4&S4);
    [done|apply (ok_epoch _ 1 h2); try done; simpl; lia|]. later.
  destruct (do_put x4 2 0 (Ep v)) as (x5&R5&W5&K&E5&S5);
    [done|by apply (ok_epoch _ 1 h2)|by rewrite S4, S3, S2, S1, S0|]. later.
  destruct (do_ack x5 h2 0 v) as (x6&R6&A6&K&E6&S6); try done.
  { intros k [_ Hk]. assert (k = 0) as -> by lia. by exists v. }
  simpl in A6. later.
  (* The second machine claims, seals before the second epoch, and opens. *)
  destruct (do_swap x6 h3) as (x7&R7&E7&P7&K&S7); [done|rewrite E6, E5, E4, E3; by apply (ok_claim _ 2)|]. later.
  destruct (do_put x7 2 1 Seal) as (x8&R8&W8&K&E8&S8);
    [done|apply (ok_seal _ h3); [done|simpl; lia]|by rewrite S7, S6, S5, S4, S3, S2, S1, S0|]. later.
  assert (∀ x, was x 2 0 (Ep v) → was x 2 1 Seal → scan x h3 1 [v]) as Hscan.
  { intros x Hw Hs. unfold scan; simpl. split_and!; try done; try lia; [apply prefix_nil|].
    intros [|s] z _ Hz; simplify_eq/=; done. }
  destruct (do_swap x8 h4) as (x9&R9&E9&P9&K&S9); [done| |].
  { rewrite E8, E7. apply (ok_open _ 2 h3 h3 1 [v]); try done; try (simpl; lia). by apply Hscan. }
  later.
  destruct (do_opened x9 h4 h3 [v]) as (y1&R10&O10&K&E10&S10); try done; [simpl; lia|by apply Hscan|].
  simpl in O10. later.
  (* It publishes a checkpoint and deletes the slot. *)
  destruct (do_swap y1 h5) as (y2&R11&E11&P11&K&S11); [done| |].
  { rewrite E10, E9. apply (ok_publish _ 2 h4); try done; [simpl; lia|apply prefix_nil| |by intros n ?%elem_of_nil].
    intros [|s] z _ Hz; simplify_eq/=; done. }
  later.
  destruct (do_delete y2 2 0) as (y3&R12&K&E12&S12); [done| |].
  { apply (ok_del_slot _ h5); try done; [simpl; lia|]. by intros ?%elem_of_nil. }
  later. exists y3. rewrite E12, S12, S11, S10, S9, S8. split_and!; done.
Qed.
End witness.
