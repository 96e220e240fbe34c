(** The checker of streams as an OCaml module. Numbers are native integers, below 2^62. *)
From Coq Require Import Extraction ExtrOcamlBasic ExtrOcamlNatInt.
From Steadfast Require Import StreamsCheck.
Extraction Language OCaml.
Extract Inlined Constant Init.Nat.add => "(+)".
Extract Inlined Constant Init.Nat.eqb => "((=) : int -> int -> bool)".
Extract Inlined Constant Init.Nat.ltb => "((<) : int -> int -> bool)".
Extract Inlined Constant negb => "not".
Extraction "streams.ml" start exec touched names named in_order.
