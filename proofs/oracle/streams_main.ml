(* oracle streams: reads which operations were committed, froze together and were laid, one event
   a line, and refuses the first that the rules of streams do not allow. See README.md for the
   lines. *)
open Streams

exception Bad of string

let block_bits = 32768
let number s = match int_of_string_opt s with Some n when n >= 0 -> n | _ -> raise (Bad ("no number: " ^ s))

let bits token use block from len =
  if from < 0 || from > block_bits || len > block_bits - from then raise (Bad ("leaves its block: " ^ token));
  RBits (use, number block, from, len)

let reference token =
  match String.split_on_char ':' token with
  | [ "x"; obj ] -> RObj (true, number obj)
  | [ "s"; obj ] -> RObj (false, number obj)
  | [ "w"; block; from; len ] -> bits token UWrite block (number from) (number len)
  | [ "a"; block; byte ] -> bits token UAdd block (8 * min block_bits (number byte)) 64
  | [ "t"; block; from; len ] -> bits token ULatest block (number from) (number len)
  | [ "e"; block ] -> REnd (number block)
  | _ -> raise (Bad ("no reference: " ^ token))

let event = function
  | "op" :: id :: stream :: refs ->
    EOp { o_id = number id; o_str = number stream; o_refs = List.map reference refs }
  | "close" :: ids -> EClose (List.map number ids)
  | "lay" :: ids -> ELay (List.map number ids)
  | _ -> raise (Bad "no event")

let list ids = String.concat " " (List.map string_of_int (List.sort_uniq compare ids))

(* Why the checker says no. *)
let reason state event =
  let misnamed ids txns what =
    let txns = List.filter (touched ids) txns in
    let whole = names txns in
    let missing = List.filter (fun i -> not (List.mem i ids)) whole in
    let strange = List.filter (fun i -> not (List.mem i whole)) ids in
    if missing <> [] then Some (Printf.sprintf "%s transaction is torn: %s left out" what (list missing))
    else if strange <> [] then Some (Printf.sprintf "in no %s transaction: %s" what (list strange))
    else if not (named ids txns) then Some "an operation is named twice"
    else None
  in
  match event with
  | EOp x -> Printf.sprintf "operation %d was committed before" x.o_id
  | EClose ids -> Option.value (misnamed ids state.c_run "running") ~default:"refused"
  | ELay ids -> Option.value (misnamed ids state.c_closed "closed") ~default:"laid before what it follows"

let run options =
  let keep_going = List.mem "--keep-going" options in
  let state = ref None and line_number = ref 0 in
  let events = ref 0 and traces = ref 0 and refused = ref 0 in
  (* The rest of a refused trace is skipped. *)
  let skipping = ref false in
  let refuse line why =
    Printf.printf "refused: line %d (trace %d): %s: %s\n" !line_number !traces line why;
    if not keep_going then exit 1;
    incr refused;
    skipping := true
  in
  (try
     while true do
       let line = input_line stdin in
       incr line_number;
       match List.filter (( <> ) "") (String.split_on_char ' ' line) with
       | [] -> ()
       | first :: _ when first.[0] = '#' -> ()
       | "trace" :: rest ->
         incr traces;
         skipping := false;
         if rest = [] then state := Some start else refuse line "a trace begins with nothing"
       | _ when !skipping -> ()
       | tokens -> (
         match (!state, event tokens) with
         | exception Bad why -> refuse line why
         | None, _ -> refuse line "no trace begun"
         | Some s, e -> (
           match exec s e with
           | Some next -> incr events; state := Some next
           | None -> refuse line (reason s e)))
     done
   with End_of_file -> ());
  Printf.printf "accepted: %d events in %d traces, %d refused\n" !events !traces !refused;
  if !refused > 0 then exit 1
