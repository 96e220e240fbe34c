(** What clients keep to when they commit an operation, and that then every batch makes a
    record: absorption never meets two effects of which it can make none, and what comes out
    is what the journal may lay. *)
From stdpp Require Import prelude functions list sorting.
From Steadfast Require Import Disk Replay Journal Inv Recovery Run Steps1 Steps2 Steps3 Refine Streams Absorb Commute Compose.

Section effects.
Context {off byte : Type} (zero : byte).
Notation eff := (eff off byte).

(** What may be done to a block, by its state. *)
Definition fits (x : stat) (e : eff) : bool :=
  match e, x with
  | ENone, _ | EPatch _ _, Used | EPatch true _, Avail | EFree _, Used | EFree _, Avail | ECover _ _ _, Claimed => true
  | _, _ => false
  end.
(** Effects one after the other on one block, as if in one record. *)
Definition upto (x : stat) (acc : option eff) (e : eff) : option eff :=
  match acc with
  | Some a => match absorb a e with Some a' => if fits x a && fits x a' then Some a' else None | None => None end
  | None => None
  end.
Definition lawful (x : stat) (l : list eff) : Prop := foldl (upto x) (Some ENone) l ≠ None.

Definition alike (e e' : eff) : Prop :=
  match e, e' with
  | ENone, ENone | EFree _, EFree _ => True
  | EPatch z _, EPatch z' _ => z = z'
  | ECover _ _ fr, ECover _ _ fr' => fr = fr'
  | _, _ => False
  end.
Definition oalike (a a' : option eff) : Prop :=
  match a, a' with Some e, Some e' => alike e e' | None, None => True | _, _ => False end.
#[global] Instance oalike_equiv : Equivalence oalike.
Proof.
  split.
  - by intros [[]|].
  - intros [[]|] [[]|]; simpl; try done.
  - intros [[]|] [[]|] [[]|]; simpl; try done; congruence.
Qed.
Lemma fits_alike x e e' : alike e e' → fits x e = fits x e'.
Proof. by destruct e as [|[]| |], e' as [|[]| |], x. Qed.
Lemma absorb_alike a a' e : alike a a' → oalike (absorb a e) (absorb a' e).
Proof. destruct a as [|z p|rv|ch c []], a' as [|z' p'|rv'|ch' c' []], e as [|[]| |]; simpl; try done; by intros ->. Qed.
Lemma upto_alike x a a' e : oalike a a' → oalike (upto x a e) (upto x a' e).
Proof.
  destruct a as [a|], a' as [a'|]; simpl; try done. intros H. pose proof (absorb_alike _ _ e H) as He.
  destruct (absorb a e) as [b|], (absorb a' e) as [b'|]; simpl in *; try done.
  rewrite (fits_alike x _ _ H), (fits_alike x _ _ He). by destruct (_ && _).
Qed.
Lemma upto_comm x a e1 e2 : indep e1 e2 → oalike (upto x (upto x a e1) e2) (upto x (upto x a e2) e1).
Proof.
  destruct a as [a|]; [|done]. destruct e1 as [|[] p|r1|h1 c1 f1], e2 as [|[] q|r2|h2 c2 f2]; simpl; try done; intros _;
    destruct a as [|[] p0|rv|ch c []], x; simpl; try done; [by destruct f2|by destruct f1].
Qed.
Lemma upto_absorbs x l e : foldl (upto x) (Some ENone) l = Some e → absorbs l = Some e ∧ fits x e = true.
Proof.
  revert e. induction l as [|e' l IH] using rev_ind; intros e; [by intros [= <-]|]. unfold absorbs. rewrite !foldl_app. simpl.
  fold (absorbs l). destruct (foldl (upto x) (Some ENone) l) as [a|]; [|done]. destruct (IH a eq_refl) as [-> _]. simpl.
  destruct (absorb a e') as [a'|]; [|done]. destruct (fits x a); [|done]. simpl. destruct (fits x a') eqn:E; [|done]. by intros [= <-].
Qed.
Lemma upto_none x l : foldl (upto x) None l = None.
Proof. induction l; done. Qed.
Lemma upto_mono x y a l e : (∀ e, fits x e = true → fits y e = true) → foldl (upto x) a l = Some e → foldl (upto y) a l = Some e.
Proof.
  intros H. revert a. induction l as [|e' l IH]; intros a; [done|]. simpl. intros Hf. destruct a as [a|]; [|by rewrite upto_none in Hf].
  simpl in *. destruct (absorb a e') as [a'|]; [|by rewrite upto_none in Hf].
  destruct (fits x a) eqn:E1; [|by rewrite upto_none in Hf]. destruct (fits x a') eqn:E2; [|by rewrite upto_none in Hf].
  rewrite (H _ E1), (H _ E2). by apply IH.
Qed.
(** What comes after a record is lawful on what the record leaves. *)
Lemma upto_after n x a l e : fits x a = true → foldl (upto x) (Some a) l = Some e →
  lawful (stat_after n a x) l.
Proof.
  intros Ha Hf. assert (∃ c, foldl (upto (stat_after n a x)) (Some ENone) l = Some c ∧ oalike (absorb a c) (Some e))
    as (c&Hc&_); [|by unfold lawful; rewrite Hc].
  revert e Hf. induction l as [|e' l IH] using rev_ind; intros e.
  - intros [= <-]. exists ENone. split; [done|]. by destruct a as [| | |? ? []]; simpl.
  - rewrite !foldl_app. simpl. destruct (foldl (upto x) (Some a) l) as [ac|]; [|done].
    destruct (IH ac eq_refl) as (c&->&Hc). clear IH. simpl.
    destruct a as [|[]|rv|ch ca []], c as [|[]|rc|cc c0 []]; simpl in Hc; try done;
      destruct ac as [|[]|rac|cac ca' []]; simpl in Hc; try done;
      destruct e' as [|[]|re|ce c1 []]; simpl; try done; destruct x; simpl in *; try done;
      intros [= <-]; eexists; (split; [done|]); done.
Qed.
End effects.

Section discipline.
Context {addr : Type} `{!EqDecision addr} {off byte : Type} (zero : byte).
Context (N : nat) (d0 : addr → option (off → byte)).
Context {op stream : Type} `{!EqDecision stream} (str : op → stream) (rel : op → op → Prop).
Context (fx : op → addr → eff off byte).
Hypothesis relates : ∀ x y, dep str rel x y ∨ ∀ b, indep (fx x b) (fx y b).
Notation eff := (eff off byte).
Notation st := (@st addr off byte).
Notation bst := (@bst op stream).
Notation cst := (@cst addr off byte op stream).
Notation cstep := (cstep zero N d0 str rel fx).
Notation fxs := (fxs fx).
Notation step := (step zero N d0).

(** The rule: what an operation does to a block fits the block's state and what the operations
    that are in no record yet do to it; data is written around the log only to blocks that
    none of them touches. *)
Definition keeps (l : @clabel addr off byte op) (s s' : cst) : Prop :=
  match l with
  | CCommit x => ∀ v b, md (jn s) = Run v → lawful (stt v b) (fxs b (unlaid (sm s) ++ [x]))
  | CTau => ∀ v v' b, md (jn s) = Run v → md (jn s') = Run v' → stt v b = Avail → stt v' b = Claimed →
      Forall (λ e, e = ENone) (fxs b (unlaid (sm s)))
  | _ => True
  end.
Inductive dsteps : cst → cst → Prop :=
| ds_nil s : dsteps s s
| ds_cons l s1 s2 s3 : cstep l s1 s2 → keeps l s1 s2 → dsteps s2 s3 → dsteps s1 s3.
Definition in_law (s : cst) : Prop := ∀ v b, md (jn s) = Run v → lawful (stt v b) (fxs b (unlaid (sm s))).

Lemma tau_stt J J' v v' b : step Tau J J' → md J = Run v → md J' = Run v' →
  stt v' b = stt v b ∨ (stt v b = Avail ∧ stt v' b = Claimed) ∨ (∃ s wp, stt v b = Quar s wp ∧ stt v' b = Avail).
Proof.
  intros Hs Hv Hv'. inversion Hs; subst; simpl in *; simplify_eq; simpl; auto; unfold upd_st; case_decide; subst; eauto 7.
Qed.
Lemma other_stt l J J' v v' : step l J J' → md J = Run v → md J' = Run v' →
  match l with
  | Lay r => ∀ b, stt v' b = stat_after (length (rs J)) (r_eff r b) (stt v b)
  | Ack | Read _ _ => stt v' = stt v
  | _ => True
  end.
Proof. intros Hs Hv Hv'. destruct Hs; simpl in *; simplify_eq; done. Qed.
Lemma fits_laid_as n (e e' : eff) x (y : eff) : laid_as e e' → fits (stat_after n e x) y = true → fits (stat_after n e' x) y = true.
Proof.
  destruct e as [|z p|rv|chk c fr], e' as [|z' p'|rv'|chk' c' fr']; simpl; try done.
  - intros [-> ->]. destruct fr; [|done]. by destruct y as [|[]| |].
Qed.
Lemma lawful_mono (x y : stat) (l : list eff) : (∀ e : eff, fits x e = true → fits y e = true) → lawful x l → lawful y l.
Proof.
  intros H Hl. unfold lawful in *. destruct (foldl (upto x) _ _) as [e|] eqn:E; [|done]. by rewrite (upto_mono _ _ _ _ _ H E).
Qed.
Lemma lawful_nones (x : stat) (l : list eff) : Forall (λ e, e = ENone) l → lawful x l.
Proof.
  intros H. unfold lawful. assert (foldl (upto x) (Some ENone) l = Some ENone) as ->; [|done].
  induction H as [|e l -> _ IH]; [done|]. done.
Qed.

(** Taking the transactions [ts] out of what is in no record, to the front. *)
Lemma take_out S S' ts b x : binv str rel S → bstep str rel S S' → recs S' = recs S ++ [ts] →
  lawful x (fxs b (unlaid S)) → lawful x (fxs b (concat (ops_of S <$> ts)) ++ fxs b (unlaid S')).
Proof.
  intros Hv Hs HR Hl. pose proof (binv_logged _ _ _ (bstep_inv _ _ _ _ Hv Hs)) as Hlog.
  destruct (lay_keeps _ _ _ _ _ Hs HR) as (Hh&Ho&_).
  assert (laid S' = laid S ++ ts) as HL by (unfold laid; rewrite HR, concat_app; simpl; by rewrite app_nil_r).
  pose proof (all_sorted _ _ _ relates b S' Hlog) as Hsort. rewrite HL in Hsort. unfold in_order in Hsort.
  rewrite fmap_app, concat_app, <-app_assoc in Hsort. apply StronglySorted_app_inv_r in Hsort.
  fold (in_order (own S') (length (hist S')) ts) in Hsort.
  unfold lawful in *. assert (oalike (foldl (upto x) (Some ENone) (fxs b (concat (ops_of S <$> ts)) ++ fxs b (unlaid S')))
    (foldl (upto x) (Some ENone) (fxs b (unlaid S)))) as He.
  2:{ intros E. rewrite E in He. by destruct (foldl (upto x) (Some ENone) (fxs b (unlaid S))). }
  unfold unlaid. rewrite fxs_in_order, !fxs_sel, Hh, Ho, <-fmap_app. rewrite Hh, Ho in Hsort.
  apply (any_order oalike (upto x) indep); [intros; by apply upto_alike|intros; by apply upto_comm| |apply ssorted_filter, ssorted_seq|].
  - destruct Hlog as [Hnd _]. rewrite HL in Hnd. apply NoDup_app in Hnd as (_&Hdis&Hnd). apply NoDup_Permutation.
    + apply NoDup_app. split_and!; [by apply NoDup_in_order| |apply NoDup_filter, NoDup_seq].
      intros i [_ Hi]%elem_in_order [Hn _]%elem_of_list_filter. apply Hn. rewrite HL. apply elem_of_app. by right.
    + apply NoDup_filter, NoDup_seq.
    + intros i. rewrite elem_of_app, elem_in_order, !elem_of_list_filter, elem_of_seq, HL, elem_of_app.
      destruct (decide (own S i ∈ ts)) as [Hi|Hi]; [|intuition lia]. assert (own S i ∉ laid S) by (intros Hi'; by apply (Hdis _ Hi')).
      intuition lia.
  - by rewrite HL.
Qed.
Lemma lawful_split (x : stat) n (l k : list eff) : lawful x (l ++ k) →
  ∃ e, absorbs l = Some e ∧ fits x e = true ∧ lawful (stat_after n e x) k.
Proof.
  unfold lawful at 1. rewrite foldl_app. destruct (foldl (upto x) (Some ENone) l) as [e|] eqn:E; [|by rewrite upto_none].
  destruct (upto_absorbs _ _ _ E) as [Ha Hf]. intros Hk. exists e. split_and!; [done..|].
  destruct (foldl (upto x) (Some e) k) as [e'|] eqn:E'; [|done]. by eapply upto_after.
Qed.

Lemma in_law_step l s s' : CI zero N d0 str rel fx s → in_law s → cstep l s s' → keeps l s s' → in_law s'.
Proof.
  intros HC Hl Hs Hk. pose proof HC as [Hmi Hlb Hlen Heff Hbase Hlog Hrun].
  destruct Hs as [J J' S K n HJ|x J v S S' K n Hv HS Hh|J v S S' K n Hv HS Hh HR|r ts J J' S S' K n HJ HS HR Hcar
    |J J' S K n HJ|b c c' J J' S K n HJ Hc|b c' J v S K n Hv Hst Hc|J J' S K n HJ|k J J' S K n HJ];
    unfold in_law in *; simpl in *.
  - intros v' b Hv'. destruct (stays_running _ _ _ _ _ _ _ HJ ltac:(done) Hv') as [v Hv].
    destruct (tau_stt _ _ _ _ b HJ Hv Hv') as [->|[[E1 E2]|(q&wp&E1&->)]]; [by apply Hl| |].
    + apply lawful_nones. by eapply Hk.
    + eapply lawful_mono; [|by apply Hl]. rewrite E1. by intros [|[]| |].
  - intros v' b Hv'. specialize (Hk v' b Hv'). specialize (Hrun v Hv). destruct (commit_laid _ _ _ _ _ Hrun HS Hh) as (HR&Hnew&Hsame).
    replace (unlaid S') with (unlaid S ++ [x]); [done|]. unfold unlaid. rewrite Hh, app_length, Nat.add_1_r, mask_S.
    assert (laid S' = laid S) as HL by (unfold laid; by rewrite HR).
    rewrite sel_app by apply mask_length. rewrite HL, (bool_decide_eq_true_2 (own S' (length (hist S)) ∉ laid S)) by done.
    simpl. do 2 f_equal.
    apply mask_ext. intros i Hi. split; intros Hn Hin; apply Hn.
    + by rewrite <-(proj1 (Hsame i (own S' i) Hi Hin) eq_refl) in Hin.
    + by rewrite (proj2 (Hsame i (own S i) Hi Hin) eq_refl).
  - intros v' b Hv'. destruct (close_keeps _ _ _ _ HS Hh HR) as [Ho _]. replace (unlaid S') with (unlaid S); [by apply Hl|].
    unfold unlaid, laid. by rewrite Hh, Ho, HR.
  - intros v' b Hv'. destruct (lay_running _ _ _ _ _ _ HJ) as [v Hv]. rewrite (other_stt _ _ _ _ _ HJ Hv Hv' b).
    destruct (lawful_split _ (length (rs J)) _ _ (take_out _ _ _ b _ (Hrun v Hv) HS HR (Hl v b Hv))) as (e&He&_&Hlaw).
    destruct (Hcar b) as (e'&He'&Hla). assert (e' = e) as -> by congruence. eapply lawful_mono; [|done]. intros y. by apply fits_laid_as.
  - intros v' b Hv'. destruct (stays_running _ _ _ _ _ _ _ HJ ltac:(done) Hv') as [v Hv].
    rewrite (other_stt _ _ _ _ _ HJ Hv Hv'). by apply Hl.
  - intros v' b' Hv'. destruct (stays_running _ _ _ _ _ _ _ HJ ltac:(done) Hv') as [v Hv].
    rewrite (other_stt _ _ _ _ _ HJ Hv Hv'). by apply Hl.
  - done.
  - intros v' b Hv'. by inversion HJ; subst.
  - done.
Qed.
Lemma reach_law s0 s : cinit zero d0 s0 → dsteps s0 s → CI zero N d0 str rel fx s ∧ in_law s.
Proof.
  intros Hi Hs. assert (CI zero N d0 str rel fx s0 ∧ ∃ t, sim s0 t) as [HC [t Hm]].
  { destruct (init_CI zero N d0 str rel fx s0 Hi). eauto. }
  assert (in_law s0) as Hl by (destruct Hi as (J&_&->); done).
  clear Hi. revert t Hm. induction Hs as [s|l s1 s2 s3 H1 H2 H3 IH]; intros t Hm; [done|].
  destruct (sstep_sim _ _ _ _ _ _ relates _ _ _ _ HC Hm H1) as (t2&_&Hm2&HC2).
  pose proof (in_law_step l s1 s2 HC Hl H1 H2). by eapply IH.
Qed.

(** (1) Whatever batch comes next, each block's effects make one, and it is one that the
    block's state allows. *)
Theorem batch_absorbs s0 s v S' ts b :
  cinit zero d0 s0 → dsteps s0 s → md (jn s) = Run v → bstep str rel (sm s) S' → recs S' = recs (sm s) ++ [ts] →
  ∃ e, absorbs (fxs b (concat (ops_of (sm s) <$> ts))) = Some e ∧ fits (stt v b) e = true.
Proof.
  intros Hi Hs Hv HS HR. destruct (reach_law _ _ Hi Hs) as [[Hmi Hlb Hlen Heff Hbase Hlog Hrun] Hl].
  destruct (lawful_split _ 0 _ _ (take_out _ _ _ b _ (Hrun v Hv) HS HR (Hl v b Hv))) as (e&?&?&_). eauto.
Qed.
(** So its record can be laid as soon as the committer is idle, the log has room and the
    batch's covered data is complete. *)
Theorem record_exists s0 s v S' ts len :
  cinit zero d0 s0 → dsteps s0 s → md (jn s) = Run v → bstep str rel (sm s) S' → recs S' = recs (sm s) ++ [ts] →
  cp v = CIdle → 0 < len → posn (rs (jn s)) (length (rs (jn s))) + len ≤ posn (rs (jn s)) (h_tail (hc v)) + N →
  (∀ b chk c fr, absorbs (fxs b (concat (ops_of (sm s) <$> ts))) = Some (ECover chk c fr) → ∀ o,
    cur (home (dk (jn s)) b o) = c o ∧ don (home (dk (jn s)) b o) = length (old (home (dk (jn s)) b o)) ∧
    (chk = false → length (old (home (dk (jn s)) b o)) ≤ low (home (dk (jn s)) b o))) →
  ∃ r J', r_len r = len ∧ cstep CTau s (C J' S' (kept s) (nb s)) ∧ step (Lay r) (jn s) J'.
Proof.
  intros Hi Hs Hv HS HR Hcp Hlen Hroom Hdata.
  pose proof (λ b, batch_absorbs _ _ _ _ _ b Hi Hs Hv HS HR) as Hb. destruct s as [[[H G D] R a m] T K n]. simpl in *. subst m.
  set (f b := match absorbs (fxs b (concat (ops_of T <$> ts))) with Some (EFree _) => EFree true | Some e => e | None => ENone end).
  set (r := Rec (h_ep (hc v)) (length R) (posn R (length R)) len a f).
  assert (step (Lay r) (St (Disk H G D) R a (Run v)) (St (Disk H (wrs N r G) D) (R ++ [r]) a
    (Run (Vol (nh v) (hc v) (λ b, stat_after (length R) (r_eff r b) (stt v b)) CW (kp v))))) as HJ.
  { apply s_lay; try done. intros b. destruct (Hb b) as (e&He&Hf). specialize (Hdata b). unfold layok, r, f. simpl. rewrite He in *.
    destruct e as [|[] p|rv|chk c fr]; simpl in Hf; try done; destruct (stt v b); try done; try (by auto);
      try (split; [by auto|done]). split; [done|eauto]. }
  exists r. eexists. split_and!; [done| |exact HJ]. econstructor; [exact HJ|done|done|].
  intros b. destruct (Hb b) as (e&He&_). exists e. split; [done|]. unfold r, f. simpl. rewrite He. by destruct e.
Qed.
End discipline.
