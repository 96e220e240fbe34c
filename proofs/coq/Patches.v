(** Patches of blocks: where operations only write, what a record carries for a block
    ([Images]) is what [Absorb] makes of its operations' effects. So what is proved there of
    records holds of these bytes. *)
From stdpp Require Import prelude functions list.
From Steadfast Require Import Replay Streams Absorb Reorder Images Bytes.

Section blocks.
Context {op stream addr off val : Type} `{!EqDecision stream} `{!EqDecision addr} `{!EqDecision off}.
Context (plus : val → val → val) (zero : val).
Context (Hcomm : Comm (=) plus) (Hassoc : Assoc (=) plus) (Hzero : RightId (=) zero plus).
Notation place := (addr * off)%type.
Context (str : op → stream) (rel : op → op → Prop) (eds : op → list (@edit place val)).
Context (Hov : ∀ x y o, clash eds x y o = true → rel x y) (d0 : place → val).

Definition in_block (b : addr) (e : @edit place val) : bool :=
  match e with EWrite o _ | EAdd o _ | ELatest o _ => bool_decide (o.1 = b) end.
Definition ofx (x : op) (b : addr) : eff off val :=
  if existsb (in_block b) (eds x)
  then EPatch false (λ f, if wr eds x (b, f) then Some (pt plus eds x (b, f) zero) else None) else ENone.
(** The last write of a place. *)
Definition last_write (o : place) (l : list op) : option val :=
  foldl (λ a x, if wr eds x o then Some (pt plus eds x o zero) else a) None l.
Lemma last_snoc o l x : last_write o (l ++ [x]) = if wr eds x o then Some (pt plus eds x o zero) else last_write o l.
Proof. unfold last_write. by rewrite foldl_app. Qed.
Lemma ofx_none x b f : existsb (in_block b) (eds x) = false → wr eds x (b, f) = false.
Proof.
  unfold wr. induction (eds x) as [|e l IH]; simpl; [done|]. intros [He Hl]%orb_false_iff. rewrite IH by done.
  destruct e as [o v|o v|o v]; simpl in *; try done. apply bool_decide_eq_false in He. rewrite bool_decide_false; [done|].
  intros ->. done.
Qed.
Lemma absorbs_writes l b : ∃ e, absorbs ((λ x, ofx x b) <$> l) = Some e ∧
  match e with
  | ENone => ∀ f, last_write (b, f) l = None
  | EPatch z p => z = false ∧ ∀ f, p f = last_write (b, f) l
  | _ => False
  end.
Proof.
  induction l as [|x l (e&He&Hm)] using rev_ind; [by exists ENone|].
  rewrite fmap_app. unfold absorbs in *. rewrite foldl_app, He. csimpl. unfold ofx at 1.
  destruct (existsb (in_block b) (eds x)) eqn:Ex.
  - destruct e as [|z p| |]; try done; simpl; eexists; (split; [done|]); simpl.
    + split; [done|]. intros f. by rewrite last_snoc, Hm.
    + destruct Hm as [-> Hm]. split; [done|]. intros f. rewrite last_snoc, Hm. by destruct (wr eds x (b, f)).
  - exists e. split; [by destruct e as [| | |]|]. assert (∀ f, last_write (b, f) (l ++ [x]) = last_write (b, f) l) as Hl
      by (intros f; by rewrite last_snoc, (ofx_none _ _ _ Ex)).
    destruct e as [|z p| |]; try done; [intros f; by rewrite Hl|]. destruct Hm as [-> Hm]. split; [done|].
    intros f. by rewrite Hl.
Qed.
Lemma run_last H o l v : (∀ i x, H !! i = Some x → ad eds x o = false ∧ lt eds x o = false) →
  run_all (fo plus eds H o) l v = match last_write o (omap (H !!.) l) with Some w => w | None => v end.
Proof.
  intros Hp. induction l as [|i l IH] using rev_ind; [done|]. rewrite omap_app, run_all_app, IH. simpl.
  unfold run_all, fo. simpl. destruct (H !! i) as [x|] eqn:Ex; [|by rewrite app_nil_r]. rewrite last_snoc.
  destruct (Hp i x Ex) as [Ha Hl]. destruct (wr eds x o) eqn:Ew; [by apply pt_const; rewrite Ew|].
  rewrite (pt_none plus zero); [done|done..|]. unfold tch. by rewrite Ew, Ha, Hl.
Qed.
Theorem patch_absorbs c c' ts b : iinit d0 c → isteps plus zero str rel eds c c' →
  (∀ i x f, hist c'.1 !! i = Some x → ad eds x (b, f) = false ∧ lt eds x (b, f) = false) →
  (∀ t, t ∈ ts → ph c'.1 t = PClosed) →
  ∃ e, absorbs ((λ x, ofx x b) <$> omap (hist c'.1 !!.) (concat (idx c'.1 <$> ts))) = Some e ∧
    match e with
    | ENone => ∀ f, patch plus c'.2 ts (λ _, false) (b, f) = None
    | EPatch z p => z = false ∧ ∀ f, patch plus c'.2 ts (λ _, false) (b, f) = p f
    | _ => False
    end.
Proof.
  intros Hi Hs Hp Hts. pose proof (reach_iinv plus zero Hcomm Hassoc Hzero str rel eds Hov d0 _ _ Hi Hs) as Hv.
  pose proof Hv as [_ _ Im Ia _ _ Il _ _ _ _ _ _ _ _ _ _ _ _]. destruct c' as [s m]; simpl in *.
  assert (∀ f, patch plus m ts (λ _, false) (b, f) = last_write (b, f) (omap (hist s !!.) (concat (idx s <$> ts)))) as E.
  { intros f. assert (existsb (λ t, msk m t (b, f) || adm m t (b, f) || lat m t (b, f)) ts =
      anyb (hist s) (λ x, wr eds x (b, f)) (concat (idx s <$> ts))) as Ee.
    { rewrite anyb_concat. apply existsb_ext_in. intros t Ht. rewrite Im, Ia by (right; auto).
      assert (∀ p, (∀ i x, hist s !! i = Some x → p x = false) → anyb (hist s) p (idx s t) = false) as Hno.
      { intros p Hpf. apply not_true_iff_false. intros (i&x&_&Hx&Hpx)%anyb_spec. by rewrite (Hpf i x) in Hpx. }
      assert (lat m t (b, f) = false) as ->.
      { apply not_true_iff_false. intros Hl%Il; [|auto]. unfold lts in Hl. rewrite Hno in Hl; [done|].
        intros i x Hx. by destruct (Hp i x f Hx). }
      rewrite (Hno (λ x, ad eds x (b, f))), !orb_false_r; [done|]. intros i x Hx. by destruct (Hp i x f Hx). }
    unfold patch. rewrite Ee, orb_false_r. unfold lay. rewrite fold_lay1.
    rewrite (lay_plain plus zero Hcomm Hassoc Hzero str rel eds Hov d0 s m ts (b, f) _ Hv);
      [|intros i x Hx; by destruct (Hp i x f Hx)|done].
    rewrite run_last by (intros i x Hx; by apply (Hp i x f)).
    clear. induction (concat (idx s <$> ts)) as [|i l IH] using rev_ind; [done|].
    rewrite anyb_app, omap_app.
    replace (anyb (hist s) (λ x, wr eds x (b, f)) [i]) with
      (match hist s !! i with Some x => wr eds x (b, f) | None => false end) by (unfold anyb; simpl; by rewrite orb_false_r).
    simpl. destruct (hist s !! i) as [x|] eqn:Ex; simpl.
    - rewrite last_snoc. destruct (wr eds x (b, f)); [by rewrite orb_true_r|]. by rewrite orb_false_r.
    - by rewrite app_nil_r, orb_false_r. }
  destruct (absorbs_writes (omap (hist s !!.) (concat (idx s <$> ts))) b) as (e&He&Hm). exists e. split; [done|].
  destruct e as [|z p| |]; try done; [intros f; by rewrite E|]. destruct Hm as [-> Hm]. split; [done|]. intros f. by rewrite E.
Qed.
End blocks.
