package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/oncemq/oncemq/internal/founding"
)

// A service manager learns from the exit code that another start does not help.
func TestExitCodesOfFounders(t *testing.T) {
	for err, want := range map[error]int{founding.ErrFounders: exitUsage, founding.ErrEmptied: exitDamage} {
		if got := exitCode(failed(fmt.Errorf("open: %w", err))); got != want {
			t.Errorf("%v: exit code %d, want %d", err, got, want)
		}
	}
}

// What cannot become a cluster is a mistake in the flags, found before anything is made, with a word on what is right.
func TestPeerFlags(t *testing.T) {
	const three = "--founders a:9192,b:9192,c:9192"
	for flags, want := range map[string]string{
		"--peer-listen a:9192":                                         "--founders: name the nodes",
		"--peer-advertise a:9192":                                      "--peer-listen: say where",
		three:                                                          "--peer-listen: say where",
		"--founders=":                                                  "--peer-listen: say where",
		"--founders= --peer-listen a:9192":                             "--founders: name the nodes",
		three + " --peer-listen a":                                     "--peer-listen: \"a\" is not HOST:PORT",
		three + " --peer-listen a:0":                                   "port 0",
		three + " --peer-listen a:70000":                               "--peer-listen: \"a:70000\" has no port",
		three + " --peer-listen d:9192":                                "--founders: d:9192, which --peer-listen says is this node, is not among a:9192,b:9192,c:9192",
		three + " --peer-listen a:9193":                                "is not among",
		three + " --peer-listen 0.0.0.0:9192":                          "--peer-advertise says which one",
		three + " --peer-listen :9192 --peer-advertise d:9192":         "--founders: d:9192, which --peer-advertise says",
		"--founders a:9192,b:9192,a:9192 --peer-listen a:9192":         "--founders: a:9192 is named twice",
		"--founders a:9192,b --peer-listen a:9192":                     "--founders: \"b\" is not HOST:PORT",
		"--founders a:9192,b:0 --peer-listen a:9192":                   "--founders: \"b:0\" has port 0",
		"--founders a:9192,:9192 --peer-listen a:9192":                 "--founders: \":9192\"",
		"--founders a:9192,[::]:9192 --peer-listen a:9192":             "no address that others can connect to",
		"--founders a:9192,,b:9192 --peer-listen a:9192":               "--founders: \"\" is not HOST:PORT",
		"--founders a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8 --peer-listen a:1": "--founders: 8 nodes, at most 7",
		"--rack r\tr":                                                  "--rack: ",
		"--rack " + strings.Repeat("r", 256):                           "--rack: ",
	} {
		dir := t.TempDir() + "/data"
		cmd := serveCommand()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(append([]string{"--data", dir, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"}, strings.Split(flags, " ")...))
		err := cmd.ExecuteContext(t.Context())
		if exitCode(err) != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want a mistake with %q", flags, err, want)
		}
		mustNotExist(t, dir)
	}
}

func TestOwnEntryAmongTheFounders(t *testing.T) {
	three := []string{"a:9192", "[::1]:9192", "10.0.0.3:9192"}
	for _, x := range []struct {
		o    peerOptions
		want string
	}{
		{peerOptions{}, ""},
		{peerOptions{listen: "a:9192", founders: three}, "a:9192"},
		{peerOptions{listen: "[::1]:9192", founders: three}, "[::1]:9192"},
		{peerOptions{listen: ":9192", advertise: "10.0.0.3:9192", founders: three}, "10.0.0.3:9192"},
		{peerOptions{listen: "0.0.0.0:1", advertise: "a:9192", founders: three}, "a:9192"}, // behind a port that is mapped
		{peerOptions{listen: "a:9192", founders: three[:1]}, "a:9192"},
		{peerOptions{listen: "a:9192", founders: []string{"b:9192", " a:9192 "}}, "a:9192"},
	} {
		if o, err := x.o.check(); err != nil || o.advertise != x.want {
			t.Errorf("%+v: %q, %v", x.o, o.advertise, err)
		}
	}
}
