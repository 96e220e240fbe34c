module steadfast.example/crashtest

go 1.21
