(* oracle: reads the events of the running journal, one a line, and refuses the first that the
   model does not allow. See README.md for the lines. *)
open Journal

exception Bad of string

let number s = match int_of_string_opt s with Some n when n >= 0 -> n | _ -> raise (Bad ("no number: " ^ s))

let entry token =
  match String.split_on_char ':' token with
  | [ "p"; b; v ] -> (number b, XPatch (false, number v))
  | [ "z"; b; v ] -> (number b, XPatch (true, number v))
  | [ "f"; b ] -> (number b, XFree false)
  | [ "r"; b ] -> (number b, XFree true)
  | [ "c"; b; v ] -> (number b, XCover (true, number v, false))
  | [ "u"; b; v ] -> (number b, XCover (false, number v, false))
  | [ "cf"; b; v ] -> (number b, XCover (true, number v, true))
  | [ "uf"; b; v ] -> (number b, XCover (false, number v, true))
  | _ -> raise (Bad ("no entry: " ^ token))

let event = function
  | [ "data"; b; v ] -> EData (number b, number v)
  | [ "data-done"; b ] -> EDataDone (number b)
  | "record" :: epoch :: seq :: pos :: len :: flushed :: entries ->
    ELay (number epoch, number seq, number pos, number len, number flushed, List.map entry entries)
  | [ "record-done" ] -> ECommitFlush
  | [ "ack" ] -> EAck
  | [ "release"; b ] -> ERelease (number b)
  | [ "read"; b; v ] -> ERead (number b, number v)
  | [ "round" ] -> ERound
  | [ "home"; b; v ] -> EHome (number b, number v)
  | [ "home-done" ] -> ERoundFlush
  | [ "tail"; gen; epoch; tail; pos; flushed ] ->
    ETail (number gen, number epoch, number tail, number pos, number flushed)
  | [ "tail-done" ] -> ETailFlush
  | [ "round-end" ] -> ERoundEnd
  | _ -> raise (Bad "no event")

(* A block is in use from the start if the trace's first line names its content. *)
let volume tokens =
  let contents = Hashtbl.create 16 in
  List.iter
    (fun token ->
      match String.split_on_char ':' token with
      | [ b; v ] -> Hashtbl.replace contents (number b) (number v)
      | _ -> raise (Bad ("no block: " ^ token)))
    tokens;
  Hashtbl.find_opt contents

(* Blocks that a record of the trace names, and those that the checkpoint under way has written. *)
let known : (int, unit) Hashtbl.t = Hashtbl.create 64
let written : (int, unit) Hashtbl.t = Hashtbl.create 64

(* The first block that the checkpoint under way has not written. *)
let forgotten s =
  Hashtbl.fold
    (fun b () found -> if round_image s b <> None && not (Hashtbl.mem written b) then Some b else found)
    known None

let note = function
  | ELay (_, _, _, _, _, entries) -> List.iter (fun (b, _) -> Hashtbl.replace known b ()) entries
  | EHome (b, _) -> Hashtbl.replace written b ()
  | ERound -> Hashtbl.reset written
  | _ -> ()

let () =
  let state = ref None and events = ref 0 and traces = ref 0 and line_number = ref 0 in
  let refuse line why =
    Printf.printf "refused: line %d (trace %d): %s%s\n" !line_number !traces line why;
    exit 1
  in
  (try
     while true do
       let line = input_line stdin in
       incr line_number;
       match List.filter (( <> ) "") (String.split_on_char ' ' line) with
       | [] -> ()
       | first :: _ when first.[0] = '#' -> ()
       | "trace" :: blocks :: used -> (
         incr traces;
         match (number blocks, volume used) with
         | n, f -> Hashtbl.reset known; state := Some (n, f, start f)
         | exception Bad why -> refuse line (": " ^ why))
       | tokens -> (
         incr events;
         match (!state, event tokens) with
         | exception Bad why -> refuse line (": " ^ why)
         | None, _ -> refuse line ": no trace begun"
         | Some (n, f, s), e -> (
           (match if e = ERoundFlush then forgotten s else None with
           | Some b -> refuse line (Printf.sprintf ": block %d is not written" b)
           | None -> ());
           match check_event n f s e with
           | Some s -> note e; state := Some (n, f, s)
           | None -> refuse line ""))
     done
   with End_of_file -> ());
  Printf.printf "accepted: %d events in %d traces\n" !events !traces
