(* oracle journal: the events of the journal, one a line. See README.md for the lines. *)
open Journal

exception Bad of string

let bad form = Printf.ksprintf (fun text -> raise (Bad text)) form
let number s = match int_of_string_opt s with Some n when n >= 0 -> n | _ -> bad "no number: %s" s

(* Eight sectors: one name for all, or eight names with slashes between them. *)
let sectors name s =
  match String.split_on_char '/' s with
  | [ v ] -> let v = name v in { o0 = v; o1 = v; o2 = v; o3 = v; o4 = v; o5 = v; o6 = v; o7 = v }
  | [ a; b; c; d; e; f; g; h ] ->
    { o0 = name a; o1 = name b; o2 = name c; o3 = name d; o4 = name e; o5 = name f; o6 = name g; o7 = name h }
  | _ -> bad "neither one sector nor eight: %s" s

let content = sectors number
let patch = sectors (function "-" -> None | v -> Some (number v))

let entry token =
  match String.split_on_char ':' token with
  | [ "p"; b; v ] -> (number b, XPatch (false, patch v))
  | [ "z"; b; v ] -> (number b, XPatch (true, patch v))
  | [ "f"; b ] -> (number b, XFree false)
  | [ "r"; b ] -> (number b, XFree true)
  | [ "c"; b; v ] -> (number b, XCover (true, content v, false))
  | [ "u"; b; v ] -> (number b, XCover (false, content v, false))
  | [ "cf"; b; v ] -> (number b, XCover (true, content v, true))
  | [ "uf"; b; v ] -> (number b, XCover (false, content v, true))
  | _ -> bad "no entry: %s" token

(* Events of the running journal. *)
let event = function
  | [ "data"; b; v ] -> EData (number b, content v)
  | [ "data-done"; b ] -> EDataDone (number b)
  | "record" :: epoch :: seq :: pos :: len :: flushed :: entries ->
    ELay (number epoch, number seq, number pos, number len, number flushed, List.map entry entries)
  | [ "record-done" ] -> ELayDone
  | [ "flush"; f ] -> EFlush (number f)
  | [ "flushed"; f ] -> EFlushed (number f)
  | [ "ack" ] -> EAck
  | [ "release"; b ] -> ERelease (number b)
  | [ "read"; b; v ] -> ERead (number b, patch v)
  | [ "round" ] -> ERound
  | [ "home"; b; v ] -> EHome (number b, content v)
  | [ "home-done"; b ] -> EHomeDone (number b)
  | [ "tail"; gen; epoch; tail; pos; flushed ] ->
    ETail (number gen, number epoch, number tail, number pos, number flushed)
  | [ "tail-done" ] -> ETailDone
  | [ "round-end" ] -> ERoundEnd
  | _ -> bad "no event"

(* Events of what follows a cut. *)
let place = function "0" -> false | "1" -> true | i -> bad "no header's place: %s" i

let recovery = function
  | [ "survived"; b; v ] -> VSurvived (number b, content v)
  | [ "slot"; i; "-" ] -> VSlot (number i, None)
  | [ "slot"; i; seq; epoch; part ] -> VSlot (number i, Some ((number seq, number epoch), number part))
  | [ "header"; i; "-" ] -> VHeader (place i, None)
  | [ "header"; i; gen ] -> VHeader (place i, Some (number gen))
  | [ "recover" ] -> VRecover
  | [ "flush"; f ] -> VFlush (number f)
  | [ "flushed"; f ] -> VFlushed (number f)
  | [ "verdict"; gen; epoch; rep; tail; pos; last; flushed ] ->
    VVerdict (number gen, number epoch, number rep, number tail, number pos, number last, number flushed)
  | [ "verdict-done" ] -> VVerdictDone
  | [ "replay"; b; v ] -> VReplay (number b, content v)
  | [ "replay-done" ] -> VReplayDone
  | [ "fresh"; gen; epoch; tail; pos; flushed ] ->
    VFresh (number gen, number epoch, number tail, number pos, number flushed)
  | [ "fresh-done" ] -> VFreshDone
  | [ "open"; k ] -> VOpen (number k)
  | [ "again" ] -> VAgain
  | _ -> bad "no event of a recovery"

let field = function
  | FEpoch -> "epoch" | FSeq -> "sequence" | FPos -> "position" | FLen -> "length" | FFlushed -> "flushed sequence"
  | FGen -> "generation" | FTail -> "tail" | FRep -> "epoch of the records" | FEnd -> "end of the accepted chain"
  | FKept -> "number of records kept"

let status = function
  | Used -> "in use"
  | Quar (s, proof) ->
    Printf.sprintf "in quarantine since record %d%s" (s - 1) (if proof then ", which covers it" else "")
  | Avail -> "free"
  | Claimed -> "being written around the log"

let index = function S0 -> 0 | S1 -> 1 | S2 -> 2 | S3 -> 3 | S4 -> 4 | S5 -> 5 | S6 -> 6 | S7 -> 7
let committer = [| "no record is laid"; "the record's write is not complete"; "the record is written, but not acknowledged" |]

let round =
  [| "no checkpoint is under way"; "the checkpoint's home writes are under way";
     "the checkpoint's home writes are complete"; "the tail header's write is under way";
     "the tail header is written, but the round has not ended" |]

let stage =
  [| "what survived is being named"; "recovery has read, and written nothing"; "the verdict is under way";
     "replay is under way"; "the empty log's header is under way"; "the journal is open" |]

let reason = function
  | WField (f, want) -> Printf.sprintf "the %s must be %d" (field f) want
  | WRoom free -> Printf.sprintf "the record overtakes the durable tail: %d log blocks are free" free
  | WTwice b -> Printf.sprintf "block %d is named twice" b
  | WStat (b, s) -> Printf.sprintf "block %d is %s" b (status s)
  | WPatched b -> Printf.sprintf "block %d is freed without a revoke, but the log has patches of it" b
  | WHolds (b, o, v) -> Printf.sprintf "sector %d of block %d must be %d" (index o) b v
  | WWriting b -> Printf.sprintf "the write of block %d is not complete" b
  | WUnflushed b -> Printf.sprintf "block %d has no hash in the record, and its data is not durable" b
  | WCommitter x -> committer.(x)
  | WRound x -> round.(x)
  | WFlush -> "no flush that began after the writes it waits for were complete has ended"
  | WFlushName f -> Printf.sprintf "flush %d is not under way, or begins a second time" f
  | WProof b -> Printf.sprintf "the record that freed block %d is not durable, or the block is covered and not proved" b
  | WNothing -> "there is nothing to checkpoint"
  | WNoImage b -> Printf.sprintf "block %d is not to be written" b
  | WOrder b -> Printf.sprintf "the write of block %d has begun already, or has not begun" b
  | WForgotten b -> Printf.sprintf "the write of block %d is missing or not complete" b
  | WBlockGone (b, o) -> Printf.sprintf "no cut leaves that in sector %d of block %d" (index o) b
  | WSlotGone i -> Printf.sprintf "no cut leaves that in block %d of the log" i
  | WHeaderGone i -> Printf.sprintf "no cut leaves that in the place of header %d" i
  | WNoHeader -> "no header is valid, or both have one generation"
  | WPhase x -> stage.(x)
  | WVerdict last -> Printf.sprintf "a verdict must be written first: records before %d are accepted" last
  | WNoVerdict -> "nothing is accepted past the tail, or the newer header is a verdict already"
  | WEndless -> "the log's chain is longer than what was laid"

let volume =
  List.map (fun token ->
      match String.split_on_char ':' token with
      | [ b; v ] -> (number b, content v)
      | _ -> bad "no block: %s" token)

(* A trace: the checker of its volume, the state after each of its events, and the cut under way. *)
type trace = {
  check : Journal.run -> ev -> Journal.run res;
  recover : rcv -> cutev -> rcv res;
  mutable states : Journal.run array;
  mutable length : int;
  mutable cut : rcv option;
}

let begin_trace blocks used =
  { check = check_event blocks used; recover = check_recovery blocks; states = Array.make 64 (start used); length = 1; cut = None }

let push trace state =
  if trace.length = Array.length trace.states then
    trace.states <- Array.append trace.states (Array.make trace.length state);
  trace.states.(trace.length) <- state;
  trace.length <- trace.length + 1

(* One line of a trace; [Some] reason if the checker refuses it. *)
let step trace tokens =
  match (tokens, trace.cut) with
  | [ "cut"; n ], _ ->
    let n = number n in
    if n >= trace.length then bad "the trace has %d events before its cuts" (trace.length - 1);
    trace.cut <- Some (cut_run trace.states.(n));
    None
  | _, Some state -> (
    match trace.recover state (recovery tokens) with
    | Ok state -> trace.cut <- Some state; None
    | No why -> Some (reason why))
  | _, None -> (
    match trace.check trace.states.(trace.length - 1) (event tokens) with
    | Ok state -> push trace state; None
    | No why -> Some (reason why))

let run options =
  let keep_going = List.mem "--keep-going" options in
  let lines = ref 0 and traces = ref 0 and events = ref 0 and cuts = ref 0 and refused = ref 0 in
  let current = ref None and skip = ref false in
  let refuse line why =
    Printf.printf "refused: line %d (trace %d): %s: %s\n" !lines !traces line why;
    incr refused;
    if not keep_going then exit 1;
    skip := true
  in
  let line text = function
    | "trace" :: blocks :: used ->
      incr traces;
      skip := false;
      current := Some (begin_trace (number blocks) (volume used))
    | _ when !skip -> ()
    | tokens -> (
      match !current with
      | None -> bad "no trace begun"
      | Some trace -> (
        match step trace tokens with
        | Some why -> refuse text why
        | None -> if List.mem (List.hd tokens) [ "cut"; "again" ] then incr cuts else incr events))
  in
  (try
     while true do
       let text = input_line stdin in
       incr lines;
       match List.filter (( <> ) "") (String.split_on_char ' ' text) with
       | [] -> ()
       | first :: _ when first.[0] = '#' -> ()
       | tokens -> ( try line text tokens with Bad why -> refuse text why)
     done
   with End_of_file -> ());
  Printf.printf "accepted: %d events in %d traces, %d cuts, %d refused\n" !events !traces !cuts !refused;
  if !refused > 0 then exit 1
