(** The checker as an OCaml module. *)
From Coq Require Import Extraction ExtrOcamlBasic ExtrOcamlNatInt.
From Steadfast Require Import Checker.
Extraction Language OCaml.
Extraction "journal.ml" start check_event round_image.
