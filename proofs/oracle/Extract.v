(** The checker as an OCaml module. Numbers are native integers, below 2^62, and so are the
    operations on them that are named here. *)
From Coq Require Import PeanoNat NPeano Extraction ExtrOcamlBasic ExtrOcamlNatInt.
From Steadfast Require Import Checker CheckRecovery.
Extraction Language OCaml.
Extract Inlined Constant Init.Nat.add => "(+)".
Extract Inlined Constant Init.Nat.eqb => "((=) : int -> int -> bool)".
Extract Inlined Constant Init.Nat.leb => "((<=) : int -> int -> bool)".
Extract Inlined Constant Init.Nat.ltb => "((<) : int -> int -> bool)".
Extract Inlined Constant PeanoNat.Nat.eqb => "((=) : int -> int -> bool)".
Extract Inlined Constant PeanoNat.Nat.leb => "((<=) : int -> int -> bool)".
Extract Inlined Constant PeanoNat.Nat.ltb => "((<) : int -> int -> bool)".
Extract Inlined Constant NPeano.Nat.eqb => "((=) : int -> int -> bool)".
Extract Inlined Constant NPeano.Nat.leb => "((<=) : int -> int -> bool)".
Extract Inlined Constant NPeano.Nat.ltb => "((<) : int -> int -> bool)".
Extract Inlined Constant PeanoNat.Nat.eq_dec => "((=) : int -> int -> bool)".
Extract Constant Init.Nat.max => "fun (n : int) m -> if n < m then m else n".
Extract Constant PeanoNat.Nat.max => "fun (n : int) m -> if n < m then m else n".
Extract Constant Init.Nat.modulo => "fun n m -> if m = 0 then n else n mod m".
Extract Constant PeanoNat.Nat.modulo => "fun n m -> if m = 0 then n else n mod m".
Extract Inlined Constant negb => "not".
Extraction "journal.ml" start check_event cut_run check_recovery.
