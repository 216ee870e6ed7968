package testbroker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

var errNoOwner = errors.New("none of the processes has opened this connection")

// owner returns which of these processes holds the other end of a connection over IPv4 on this machine.
func owner(conn net.Conn, processes []int) (int, error) {
	inode, err := socketInode(conn.RemoteAddr().String(), conn.LocalAddr().String())
	if err != nil {
		return 0, err
	}
	link := "socket:[" + inode + "]"
	for i, pid := range processes {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		files, err := os.ReadDir(dir)
		if err != nil {
			continue // it has ended
		}
		for _, f := range files {
			if name, err := os.Readlink(filepath.Join(dir, f.Name())); err == nil && name == link {
				return i, nil
			}
		}
	}
	return 0, errNoOwner
}

// socketInode finds the socket with these two addresses in the kernel's table.
func socketInode(local, remote string) (string, error) {
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return "", fmt.Errorf("find the owner of a connection: %w", err)
	}
	want := [2]string{}
	for i, addr := range []string{local, remote} {
		if want[i], err = tableAddress(addr); err != nil {
			return "", err
		}
	}
	const localField, remoteField, inodeField = 1, 2, 9
	for line := range bytes.Lines(table) {
		fields := strings.Fields(string(line))
		if len(fields) > inodeField && fields[localField] == want[0] && fields[remoteField] == want[1] {
			return fields[inodeField], nil
		}
	}
	return "", errNoOwner
}

// tableAddress writes an IPv4 HOST:PORT as the kernel's table does.
func tableAddress(addr string) (string, error) {
	a, err := netip.ParseAddrPort(addr)
	if err != nil || !a.Addr().Is4() {
		return "", fmt.Errorf("find the owner of a connection: %q is not an IPv4 address and port", addr)
	}
	ip := a.Addr().As4()
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(ip[:]), a.Port()), nil
}
