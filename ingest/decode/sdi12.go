package decode

import (
	"regexp"
	"strings"
)

// sdiAnswer is an address, values that are separated by their signs only, and perhaps a CRC, which the framer has checked.
var sdiAnswer = regexp.MustCompile(`^([0-9A-Za-z])((?:[+-](?:[0-9]+\.?[0-9]*|\.[0-9]+))+)([@-\x7f]{3})?$`)

var sdiValue = regexp.MustCompile(`[+-][0-9.]+`)

// parseSDI12 reads the values of an SDI-12 answer.
func parseSDI12(data []byte) (any, error) {
	m := sdiAnswer.FindStringSubmatch(strings.TrimRight(string(data), "\r\n"))
	if m == nil {
		return nil, reject(ReasonSyntax, "%.60q is no address with values behind it", data)
	}
	values := []any{}
	for _, s := range sdiValue.FindAllString(m[2], -1) {
		n, ok := number(s)
		if !ok {
			return nil, reject(ReasonValue, "%q is no number", s)
		}
		values = append(values, n)
	}
	return map[string]any{"address": m[1], "values": values}, nil
}
