(* oracle MODE: reads events, one a line, and refuses the first that the model does not allow.
   One mode for each checker; each is a module of its own. *)
let () =
  match Array.to_list Sys.argv with
  | _ :: "journal" :: options -> Journal_main.run options
  | _ :: "streams" :: options -> Streams_main.run options
  | _ ->
    prerr_endline "usage: oracle journal|streams [--keep-going] <TRACES";
    exit 2
