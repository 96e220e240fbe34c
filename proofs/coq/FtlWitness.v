(** The theorems on the log are not empty: a trace in which a flush is cut while a page before
    its last one is torn (the commit is there, and does not count), the mount after it is cut,
    too, sectors are moved, a checkpoint replaces the root, the old block is erased, and a cut
    comes before any of that is synced. Two sectors that exist, two pages in a block. And one of the
    delta log alone, in which a whole page lies after a torn one. *)
From stdpp Require Import prelude functions list relations.
From Steadfast Require Import Ftl FtlLog FtlRecover FtlOps FtlRuns.

Definition inside (a : nat) : bool := a <? 2.
Definition blk (p : nat) : nat := p / 2.
Notation fl := (@flash nat nat nat).
Notation memory := (@mem nat nat nat).
Notation tr := (itrace inside cut enter (step blk 0 inside 4) done refused fails menter (read 0) new).
Notation cell := (@cell nat nat).
Lemma tau E x y : tr E x → istep inside cut enter (step blk 0 inside 4) done refused fails menter (read 0) None x y → tr E y.
Proof. apply it_tau. Qed.
Lemma ev E e x y : tr E x → istep inside cut enter (step blk 0 inside 4) done refused fails menter (read 0) (Some e) x y → tr (E ++ [e]) y.
Proof. apply it_snoc. Qed.

Definition f0 : fl := Fl (λ _, Blank) (λ _ _, False) (Root none 0) None [Run 0 0 none] 1.
Definition found_in (i u : nat) (l : list (nat * (nat → option (option nat)) * bool)) (c : fl) : memory :=
  Mem (S i) (u + length l) (ovp (cover l) (based c)) (u + length l) (ovp (cover l) (based c)) none (cover l) none 0 None 0.
Definition says_so (m : memory) (f : fl) : fl := append (Run (fn m) (mi m) (prs m)) f.
Definition put (a d : nat) (m : memory) : memory := buffer (<[a := Some (Some d)]> (buf m)) (S (wr m)) m.
Definition seal (p : nat) (b : bool) (m : memory) : memory := buffer none (wr m) (sealed (p, buf m, b) m).
Definition lay (p : nat) (b : bool) (m : memory) (f : fl) : fl := program p (Data (mi m) (num m) (buf m) b) f.

(* A new disk is mounted, a sector written and flushed. *)
Definition m1 := found_in 0 0 [] f0.
Definition M1 := told m1.
Definition f2 := sync (says_so m1 f0).
Definition M2 := put 0 7 M1.
Definition M3 := seal 0 true M2.
Definition f3 := lay 0 true M2 f2.
Definition M4 := committed M3.
Definition f4 := sync f3.
(* Two more sectors; a flush is cut. *)
Definition M5 := put 0 8 M4.
Definition M6 := seal 1 false M5.
Definition f6 := lay 1 false M5 f4.
Definition M7 := put 1 9 M6.
Definition M8 := seal 2 true M7.
Definition f8 := lay 2 true M7 f6.
Definition c8 : fl := Fl
  (λ p, match p with 0 => Data 1 0 (buf M2) true | 1 => Torn | 2 => Data 1 2 (buf M7) true | _ => Blank end)
  (λ _ _, False) (Root none 0) None (dl f8) (dd f8).
(* A mount erases, and is cut; another one returns. *)
Definition m9 := found_in 1 0 [(0, buf M2, true)] c8.
Definition f9 := says_so m9 (erase blk 1 c8).
Definition M10 := told m9.
Definition f10 := sync (says_so m9 c8).
(* Sector 0 is moved, that is committed, and a checkpoint under way. *)
Definition w11 : nat → option (option nat) := <[0 := Some (Some 7)]> none.
Definition M11 := sealed (3, w11, false) M10.
Definition f11 := program 3 (Data (mi M10) (num M10) w11 false) f10.
Definition M12 := seal 4 true M11.
Definition f12 := lay 4 true M11 f11.
Definition M13 := committed M12.
Definition f13 := sync f12.
Definition M14 := check none (length (dl f13)) None M13.
Definition M15 := check (λ a, if true then Some (mp M14 a) else ck M14 a) (ckp M14) None M14.
Definition M16 := check (ck M15) (ckp M15) (Some (S (length (dl f13)))) (told M15).
Definition f16 := append (Run (fn M15) (mi M15) (prs M15)) f13.
(* The next flush makes the run durable: the root follows, and the block is erased. *)
Definition M17 := seal 5 true M16.
Definition f17 := lay 5 true M16 f16.
Definition M18 := committed M17.
Definition f18 := sync f17.
Definition M19 := check none (ckp M18) None M18.
Definition f19 := reroot (Root (λ a, default None (ck M18 a)) (ckp M18)) f18.
Definition f20 := erase blk 0 f19.
Definition c20 : fl := Fl
  (λ p, match p with 2 => Data 1 2 (buf M7) true | 3 => Data 2 1 w11 false | 4 => Data 2 2 (buf M11) true
        | 5 => Data 2 3 (buf M16) true | _ => Blank end)
  (λ _ _, False) (Root (λ a, default None (ck M18 a)) (ckp M18)) None (dl f20) (dd f20).
Definition m21 := found_in 2 3 [(5, buf M16, true)] c20.
Definition M22 := told m21.
Definition f22 := sync (says_so m21 c20).

Ltac freshly := split; [reflexivity|intros ? Hx; vm_compute in Hx; naive_solver].
Ltac same := left; vm_compute; reflexivity.
Lemma rec0 : recover f0 m1.
Proof. apply (recovered f0 (Run 0 0 none) []); [simpl; lia|done|]. split; [done|]. intros p w b. done. Qed.
Lemma rec8 : recover c8 m9.
Proof.
  apply (recovered c8 (Run 0 1 none) [(0, buf M2, true)]); [simpl; lia|done|]. split.
  - intros [|[|j]] p w b [=]; subst. done.
  - intros [|[|[|p]]] w b; done.
Qed.
Lemma rec20 : recover c20 m21.
Proof.
  apply (recovered c20 (Run 3 2 (prs M15)) [(5, buf M16, true)]); [vm_compute; lia|done|]. split.
  - intros [|[|j]] p w b [=]; subst. done.
  - intros [|[|[|[|[|[|p]]]]]] w b; done.
Qed.
Lemma cut8 : cut f8 c8.
Proof.
  split_and!; [|intros p y []|by left|done|exists 2; split_and!; [vm_compute; lia|vm_compute; lia|done|done]].
  intros [|[|[|p]]]; [same| |same|same]. right. right. left. split; [done|by right].
Qed.
Lemma cut9 : cut f9 c8.
Proof.
  split_and!; [|intros p y []|by left|done|exists 2; split_and!; [vm_compute; lia|vm_compute; lia|done|done]].
  intros [|[|[|p]]]; [same|same|right; left; split; [done|by left]|].
  unfold poss. simpl. destruct (decide (blk (S (S (S p))) = 1)); by left.
Qed.
Lemma cut20 : cut f20 c20.
Proof.
  split_and!; [|intros p y []|by right|done|exists 4; split_and!; [vm_compute; lia|vm_compute; lia|done|done]].
  intros [|[|[|[|[|[|p]]]]]]; try same.
  left. unfold f20, erase. simpl. destruct (decide _); done.
Qed.

(** Life by life: the reads tell 7, then 8, and after the cuts 7 again. *)
Definition life1 := [Mount; Mounted; Call (Write 0 7); Done; Call Flush; Done; Read 0 7].
Definition life2 := life1 ++ [Call (Write 0 8); Done; Call (Write 1 9); Done; Read 0 8; Read 1 9; Call Flush; Cut].
Definition life3 := life2 ++ [Mount; Cut; Mount; Mounted; Read 0 7; Read 1 0].
Definition life4 := life3 ++ [Call Relocate; Done; Call Flush; Done; Call Flush; Done; Read 0 7; Cut; Mount; Mounted; Read 0 7; Read 1 0].

Lemma trace1 : tr life1 (CIdle M4 f4).
Proof.
  assert (tr [] (COff f0)) as H.
  { apply it_nil. split_and!; try done. intros p y []. }
  apply (ev [] Mount _ (CMounting (Found m1) f0)) in H; [|constructor; exists m1; split; [apply rec0|done]].
  eapply tau in H; [|eapply is_mstep, p_begin].
  eapply tau in H; [|eapply is_mstep, p_begun].
  eapply (ev _ Mounted) in H; [|by eapply is_mounted].
  eapply (ev _ (Call (Write 0 7))) in H; [|by eapply is_call].
  eapply tau in H; [|eapply is_step, p_write; [done|vm_compute; lia]].
  eapply (ev _ Done) in H; [|by eapply is_done].
  eapply (ev _ (Call Flush)) in H; [|by eapply is_call].
  eapply tau in H; [|eapply is_step, (p_commit _ _ _ _ _ _ 0); freshly].
  eapply tau in H; [|eapply is_step, p_sync].
  eapply (ev _ Done) in H; [|by eapply is_done].
  eapply (ev _ (Read 0 7)) in H; [|eapply is_read; [done|vm_compute; reflexivity]].
  exact H.
Qed.
Lemma trace2 : tr life2 (COff c8).
Proof.
  pose proof trace1 as H.
  eapply (ev _ (Call (Write 0 8))) in H; [|by eapply is_call].
  eapply tau in H; [|eapply is_step, p_write; [done|vm_compute; lia]].
  eapply (ev _ Done) in H; [|by eapply is_done].
  eapply (ev _ (Call (Write 1 9))) in H; [|by eapply is_call].
  eapply tau in H; [|eapply is_step, p_go, (i_seal _ _ _ _ 1); freshly].
  eapply tau in H; [|eapply is_step, p_write; [done|vm_compute; lia]].
  eapply (ev _ Done) in H; [|by eapply is_done].
  eapply (ev _ (Read 0 8)) in H; [|eapply is_read; [done|vm_compute; reflexivity]].
  eapply (ev _ (Read 1 9)) in H; [|eapply is_read; [done|vm_compute; reflexivity]].
  eapply (ev _ (Call Flush)) in H; [|by eapply is_call].
  eapply tau in H; [|eapply is_step, (p_commit _ _ _ _ _ _ 2); freshly].
  eapply (ev _ Cut _ (COff c8)) in H; [|eapply is_cut_in, cut8].
  unfold life2. rewrite <-!app_assoc in H. exact H.
Qed.
Lemma trace3 : tr life3 (CIdle M10 f10).
Proof.
  pose proof trace2 as H.
  apply (ev _ Mount _ (CMounting (Found m9) c8)) in H; [|constructor; exists m9; split; [apply rec8|done]].
  eapply tau in H; [|eapply is_mstep, (p_mount_erase _ _ _ _ _ _ 1)].
  2: { intros [|a] p Hp; vm_compute in Hp; [by injection Hp as <-|done]. }
  2: { intros [|[|[|p]]] i n w c; vm_compute; try done. intros _ [= <- <- _ _] _. right. lia. }
  eapply tau in H; [|eapply is_mstep, p_begin].
  eapply (ev _ Cut _ (COff c8)) in H; [|eapply is_mount_cut, cut9].
  apply (ev _ Mount _ (CMounting (Found m9) c8)) in H; [|constructor; exists m9; split; [apply rec8|done]].
  eapply tau in H; [|eapply is_mstep, p_begin].
  eapply tau in H; [|eapply is_mstep, p_begun].
  eapply (ev _ Mounted) in H; [|by eapply is_mounted].
  eapply (ev _ (Read 0 7)) in H; [|eapply is_read; [done|vm_compute; reflexivity]].
  eapply (ev _ (Read 1 0)) in H; [|eapply is_read; [done|vm_compute; reflexivity]].
  unfold life3. rewrite <-!app_assoc in H. exact H.
Qed.
Theorem ftl_runs_exist : tr life4 (CIdle M22 f22).
Proof.
  pose proof trace3 as H.
  apply (ev _ (Call Relocate) _ (CIn Relocate (Go Relocate M10) f10)) in H; [|by apply is_call].
  apply (tau _ _ (CIn Relocate (Go Relocate M11) f11)) in H; [|apply is_step, p_go, (i_move _ _ M10 f10 3 w11); [freshly|]].
  2: { intros [|a] x Hx; vm_compute in Hx; [|done]. injection Hx as <-. by exists 0. }
  apply (tau _ _ (CIn Relocate (Fin M11) f11)) in H; [|apply is_step, p_gc; by left].
  apply (ev _ Done _ (CIdle M11 f11)) in H; [|by apply is_done].
  apply (ev _ (Call Flush) _ (CIn Flush (Go Flush M11) f11)) in H; [|by apply is_call].
  apply (tau _ _ (CIn Flush (Wait M12) f12)) in H; [|apply is_step, (p_commit _ _ _ _ M11 f11 4); freshly].
  apply (tau _ _ (CIn Flush (Fin M13) f13)) in H; [|apply is_step, p_sync].
  apply (tau _ _ (CIn Flush (Fin M14) f13)) in H; [|apply is_step, p_fin, i_begin].
  apply (tau _ _ (CIn Flush (Fin M15) f13)) in H; [|apply is_step, p_fin, (i_maps _ _ M14 f13 (λ _, true)); done].
  apply (tau _ _ (CIn Flush (Fin M16) f16)) in H; [|apply is_step, p_fin, (i_tables _ _ M15 f13); [done|by eexists]].
  apply (ev _ Done _ (CIdle M16 f16)) in H; [|by apply is_done].
  apply (ev _ (Call Flush) _ (CIn Flush (Go Flush M16) f16)) in H; [|by apply is_call].
  apply (tau _ _ (CIn Flush (Wait M17) f17)) in H; [|apply is_step, (p_commit _ _ _ _ M16 f16 5); freshly].
  apply (tau _ _ (CIn Flush (Fin M18) f18)) in H; [|apply is_step, p_sync].
  apply (tau _ _ (CIn Flush (Fin M19) f19)) in H; [|apply is_step, p_fin, (i_root _ _ M18 f18 4); [done|vm_compute; lia|done]].
  apply (tau _ _ (CIn Flush (Fin M19) f20)) in H; [|apply is_step, p_fin, (i_erase _ _ M19 f19 0)].
  2, 3: intros [|a] p Hp; vm_compute in Hp; [by injection Hp as <-|done].
  2: { intros p n w c Hp. unfold blk in Hp. apply Nat.div_small_iff in Hp; [|done]. destruct p as [|[|p]]; [vm_compute; congruence..|lia]. }
  apply (ev _ Done _ (CIdle M19 f20)) in H; [|by apply is_done].
  apply (ev _ (Read 0 7) _ (CIdle M19 f20)) in H; [|apply is_read; [done|vm_compute; reflexivity]].
  apply (ev _ Cut _ (COff c20)) in H; [|apply is_cut_idle, cut20].
  apply (ev _ Mount _ (CMounting (Found m21) c20)) in H; [|apply is_mount; exists m21; split; [apply rec20|done]].
  apply (tau _ _ (CMounting (Begun M22) (says_so m21 c20))) in H; [|apply is_mstep, p_begin].
  apply (tau _ _ (CMounting (Fin M22) f22)) in H; [|apply is_mstep, p_begun].
  apply (ev _ Mounted _ (CIdle M22 f22)) in H; [|by apply is_mounted].
  apply (ev _ (Read 0 7) _ (CIdle M22 f22)) in H; [|apply is_read; [done|vm_compute; reflexivity]].
  apply (ev _ (Read 1 0) _ (CIdle M22 f22)) in H; [|apply is_read; [done|vm_compute; reflexivity]].
  unfold life4. rewrite <-!app_assoc in H. exact H.
Qed.

(** The delta log: a run of one page is durable; of the next one, the first page is torn and the
    second, which ends it, is whole. The log goes on in the other place that was named. *)
Notation deltas := (@dlog nat nat).
Definition x0 : @dpage nat nat := Dp 0 10 true [1; 2].
Definition x1 : @dpage nat nat := Dp 1 11 false [3; 4].
Definition x2 : @dpage nat nat := Dp 2 12 true [5; 6].
Definition y1 : @dpage nat nat := Dp 1 13 true [4; 5].
Definition s0 : deltas := Dl (Df (λ _, Empty) (λ _ _, False)) [] 0 0 [0].
Definition s1 : deltas := Dl (dwrite 0 (Holds x0) (df s0)) [(0, x0)] 0 0 [0].
Definition s2 : deltas := Dl (Df (here (df s1)) (λ _ _, False)) [(0, x0)] 0 1 [0].
Definition s3 : deltas := Dl (dwrite 1 (Holds x1) (df s2)) [(0, x0); (1, x1)] 0 1 [0].
Definition s4 : deltas := Dl (dwrite 3 (Holds x2) (df s3)) [(0, x0); (1, x1); (3, x2)] 0 1 [0].
Definition c4 : @dflash nat nat := Df (λ p, match p with 0 => Holds x0 | 1 => Junk | 3 => Holds x2 | _ => Empty end) (λ _ _, False).
Definition s5 : deltas := Dl c4 [(0, x0)] 0 1 [0].
Definition s6 : deltas := Dl (dwrite 2 (Holds y1) c4) [(0, x0); (2, y1)] 0 1 [0].
Definition s7 : deltas := Dl (Df (here (df s6)) (λ _ _, False)) [(0, x0); (2, y1)] 0 2 [0].
Ltac calmly := intros ? Hx; vm_compute in Hx; naive_solver.
Ltac places := let Hq := fresh in intros q Hq; repeat (apply elem_of_cons in Hq as [->|Hq]; [split_and!; [done|reflexivity|calmly]|]); by apply elem_of_nil in Hq.
Theorem delta_log_goes_on : dinit s0 ∧ rtc dstep s0 s7 ∧ runs_of (ch s4) = [[10]; [11; 12]] ∧ runs_of (ch s7) = [[10]; [13]].
Proof.
  split_and!; [|..|reflexivity|reflexivity].
  { split_and!; try done. intros q _. split; [done|]. calmly. }
  eapply (rtc_l _ _ s1). { apply (d_program s0 0 10 true [1; 2]); [by left|reflexivity|calmly|places]. }
  eapply (rtc_l _ _ s2); [apply d_sync|].
  eapply (rtc_l _ _ s3). { apply (d_program s2 1 11 false [3; 4]); [by left|reflexivity|calmly|places]. }
  eapply (rtc_l _ _ s4). { apply (d_program s3 3 12 true [5; 6]); [by left|reflexivity|calmly|places]. }
  eapply (rtc_l _ _ s5).
  { apply (d_cut s4 c4 0 [(0, x0)]); [simpl; lia|split; [|calmly]|].
    - intros [|[|[|[|p]]]]; [same| |same|same|same]. right. vm_compute. auto.
    - apply w_next; [by left|done|done|]. apply w_end. intros q x Hq Hx.
      repeat (apply elem_of_cons in Hq as [->|Hq]; [done|]). by apply elem_of_nil in Hq. }
  eapply (rtc_l _ _ s6). { apply (d_program s5 2 13 true [4; 5]); [by right; left|reflexivity|calmly|places]. }
  eapply (rtc_l _ _ s7); [apply d_sync|]. done.
Qed.
