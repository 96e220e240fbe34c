module steadfast-bench-gojournal

go 1.19

require (
	github.com/mit-pdos/go-journal v0.0.0-20210518170312-a289a2ecaa2b
	github.com/tchajed/goose v0.0.0-20210513163324-e3b4d6003b9a
)

require (
	github.com/tchajed/marshal v0.0.0-20210503163839-8f64c1688e77 // indirect
	golang.org/x/sys v0.0.0-20210514084401-e8d321eab015 // indirect
)
