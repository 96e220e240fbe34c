(** The theorems are not empty: a trace of the whole system, with one block of one byte, a log
    of one block and one stream. What is acknowledged is there after the cut; what is only
    committed is read before it and gone after it. *)
From stdpp Require Import prelude functions list sorting.
From Steadfast Require Import Disk Replay Journal Streams Absorb Commute Compose.

Definition d0 : unit → option (unit → nat) := λ _, Some (λ _, 0).
Definition fx (x : nat) (_ : unit) : eff unit nat := EPatch false (λ _, Some x).
Definition str (_ : nat) : unit := ().
Definition rel (_ _ : nat) : Prop := True.
Definition no (_ _ : nat) : Prop := False.
Definition ph1 (p : phase) (t : nat) : phase := match t with 0 => p | _ => PNone end.
Definition ph2 (t : nat) : phase := match t with 0 => PLaid | 1 => PRun | _ => PNone end.
Definition S1 : @bst nat unit := B [7] (λ _, 0) (ph1 PRun) (λ _, Some 0) (λ _, None) no no [].
Definition S2 : @bst nat unit := B [7] (λ _, 0) (ph1 PClosed) (λ _, None) (λ _, Some 0) no no [].
Definition S3 : @bst nat unit := B [7] (λ _, 0) (ph1 PLaid) (λ _, None) (λ _, Some 0) no no [[0]].
Definition S4 : @bst nat unit := B [7; 8] (λ i, i) ph2 (λ _, Some 1) (λ _, Some 0) no no [[0]].
Lemma step1 : bstep str rel empty S1.
Proof.
  apply (b_commit str rel 7 (λ _, False) 0 (λ _, False) []); try done.
  - tauto.
  - intros i Hi. by apply Nat.nlt_0_r in Hi.
  - intros [|t]; [by left|right; right; split_and!; [done|tauto|done]].
  - intros []. by left.
  - unfold no. naive_solver.
  - unfold no. naive_solver.
Qed.
Lemma step2 : bstep str rel S1 S2.
Proof.
  apply (b_close str rel 0); [done| |].
  - intros [|t]; [by left|by right].
  - intros []. by left.
Qed.
Lemma step3 : bstep str rel S2 S3.
Proof.
  apply (b_lay str rel [0]).
  - apply NoDup_singleton.
  - by intros t ->%elem_of_list_singleton.
  - done.
  - intros [|t]; [left; split; [by left|done]|right]. split; [|done]. by intros ?%elem_of_list_singleton.
Qed.
Lemma step4 : bstep str rel S3 S4.
Proof.
  apply (b_commit str rel 8 (λ _, False) 1 (λ _, False) [7]); try done.
  - tauto.
  - by intros c _ [= <-].
  - intros [|i] Hi; [right; split; [tauto|done]|simpl in Hi; lia].
  - intros [|[|t]]; [right; right; split_and!; [done|tauto|done]|by left|right; right; split_and!; [done|tauto|done]].
  - intros []. by left.
  - unfold no. naive_solver.
  - unfold no. naive_solver.
Qed.

Definition r : @rec unit unit nat := Rec 1 0 0 1 0 (fx 7).
Definition D : @disk unit unit nat := Disk (λ _ _, Cell [] 0 0 0 false) (λ _, Cell [] None 0 0 false)
  (λ i, Cell [] (if i then None else Some h0) 0 0 false).
Definition synced {A} (c : cell A) : cell A := Cell (old c) (cur c) (low c `max` don c) (don c) (bad c).
Lemma persist_all {A} (c : cell A) : persist c (synced c).
Proof. split_and!; try done; simpl; lia. Qed.
Definition dsynced (d : @disk unit unit nat) : disk :=
  Disk (λ b o, synced (home d b o)) (λ i, synced (slots d i)) (λ i, synced (hdrs d i)).
Lemma crash_clean d R a m : step 0 1 d0 Crash (St d R a m) (St (dclean d) R a MScan).
Proof. apply s_crash. split_and!; intros; apply survives_clean. Qed.
Lemma relabel l l' (s s' : cst) : cstep 0 1 d0 str rel fx l s s' → l = l' → cstep 0 1 d0 str rel fx l' s s'.
Proof. by intros ? <-. Qed.
Theorem runs_exist : ∃ s0 s c, cinit 0 d0 s0 ∧ c () = 7 ∧
  csteps 0 1 d0 str rel fx
    [CCommit 7; CClose [true]; CTau; CTau; CTau; CAck [true]; CCommit 8; CRead () (ov (λ _, Some 8) c); CCrash;
     CTau; CTau; CTau; COpen [true; false]; CRead () c] s0 s.
Proof.
  eexists (C (St D [] 0 (Run (Vol false h0 (opened 0 d0 [] 0) CIdle KIdle))) empty [] 0), _, (λ _, 7). split_and!.
  - eexists. split; [|done]. exists D. split_and!; try done. intros [] [] c [= <-]. done.
  - done.
  - eapply cs_cons; [eapply (k_commit _ _ _ _ _ _ _ _ _ empty S1); [done|apply step1|done]|].
    eapply cs_cons; [eapply relabel; [eapply (k_close _ _ _ _ _ _ _ _ S1 S2); [done|apply step2|done..]|done]|].
    eapply cs_cons.
    { eapply (k_lay _ _ _ _ _ _ r [0] _ _ S2 S3); [|apply step3|done|].
      - apply s_lay; try done; simpl; try lia.
      - intros b. by eexists. }
    eapply cs_cons; [by apply k_journal; eapply s_commit_flush|].
    eapply cs_cons; [apply k_journal; eapply (s_persist _ _ _ _ (dsynced _)); split_and!; intros; apply persist_all|].
    eapply cs_cons. { eapply relabel; [eapply k_ack, s_ack; [done|]|done]. split_and!; intros; apply Nat.le_max_r. }
    eapply cs_cons; [eapply (k_commit _ _ _ _ _ _ _ _ _ S3 S4); [done|apply step4|done]|].
    eapply cs_cons. { eapply (k_read _ _ _ _ _ _ _ (λ _, 7)); [eapply s_read|]; [done| |done]. intros o c [= <-]. done. }
    eapply cs_cons. { eapply k_crash, crash_clean. }
    eapply cs_cons.
    { apply k_journal. eapply (r_verdict _ _ _ false h0 [r] 1); [|done| | |done].
      - done.
      - split; [split; [|done]|].
        + split_and!; [done|done|done|simpl; lia|]. intros [|i] Hi; [done|simpl in Hi; lia].
        + intros r' (Hseq&_&_&Hlen&Hp). specialize (Hp 0 Hlen). injection Hp as <-. done.
      - split_and!; [done| |by left]. intros [|j] r' [= <-]. done. }
    eapply cs_cons; [apply k_journal; apply r_replay|].
    eapply cs_cons; [by apply k_journal; eapply r_fresh|].
    eapply cs_cons; [by eapply relabel; [eapply (k_open _ _ _ _ _ _ 1), r_open|]|].
    eapply cs_cons; [|constructor]. eapply (k_read _ _ _ _ _ _ _ (λ _, 7)); [apply s_read|]; done.
Qed.
