package decode

import (
	"bytes"
	"encoding/json"
	"testing"
)

// fuzz decodes any bytes, without the net that catches panics: there is a value that can be written as JSON and read again, or an
// error with a reason, and never both; the input stays as it was.
func fuzz(t *testing.T, cfg Config, data []byte) {
	d := open(t, cfg)
	in := bytes.Clone(data)
	res, err := d.decode(data)
	if !bytes.Equal(in, data) {
		t.Fatalf("the input became %q, was %q", data, in)
	}
	if err != nil {
		reason(t, err, cfg.Format)
		if res.Value != nil {
			t.Fatalf("a value %v and the error %v", res.Value, err)
		}
		return
	}
	text, err := Encode(res.Value)
	if err != nil {
		t.Fatalf("value of %q: %v", data, err)
	}
	if !json.Valid(text) || bytes.ContainsRune(text, '\n') {
		t.Fatalf("value of %q is written as %q", data, text)
	}
	again, err := parseJSON(text, false)
	if err != nil {
		t.Fatal(err)
	}
	if twice, err := Encode(again); err != nil || !bytes.Equal(twice, text) {
		t.Fatalf("%s is read back as %s, %v", text, twice, err)
	}
	if !res.Time.IsZero() && (res.Time.Year() < 0 || res.Time.Year() > 9999) {
		t.Fatalf("time %s", res.Time)
	}
	tr, err := NewTransformer(Transform{Rename: []string{"a=b"}, Drop: "value == 1", Payload: "{v: value}", Tail: `"x"`})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tr.Apply(Part{Value: res.Value}); err != nil {
		reason(t, err, "transform")
	}
}

func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"t":nan,"h":40.5,"s":"a\"nan"}`), true)
	f.Add([]byte("\xef\xbb\xbf[1.50,-Infinity]\x00"), false)
	f.Fuzz(func(t *testing.T, data []byte, null bool) {
		cfg := Config{Format: FormatJSON, Time: Time{Field: "t", Layout: TimeUnix}}
		if null {
			cfg.NaN = NaNNull
		}
		fuzz(t, cfg, data)
	})
}

func FuzzCSV(f *testing.F) {
	f.Add([]byte("+021.50,x,\"a, b\"\r\n"), true)
	f.Add([]byte(";;\"\"\"\"\n"), false)
	f.Fuzz(func(t *testing.T, data []byte, named bool) {
		cfg := Config{Format: FormatCSV, Separator: ";"}
		if named {
			cfg = Config{Format: FormatCSV, Columns: []string{"a", "-", "b"}}
		}
		fuzz(t, cfg, data)
	})
}

func FuzzKeyValue(f *testing.F) {
	f.Add([]byte(`temp=21.50 hum=+40,ok="a b";e=`), true)
	f.Add([]byte("\r\nV\t26499\r\nSOC\t958"), false)
	f.Fuzz(func(t *testing.T, data []byte, plain bool) {
		cfg := Config{Format: FormatKeyValue, Separator: `\r\n`, Assign: `\t`}
		if plain {
			cfg = Config{Format: FormatKeyValue}
		}
		fuzz(t, cfg, data)
	})
}

func FuzzCBOR(f *testing.F) {
	f.Add([]byte(unhex("a36174f94d60011a000f4240636e65673863")))
	f.Add([]byte(unhex("8443010203c11a514b67b0c24901000000000000000082f5f6")))
	f.Add([]byte(unhex("9f01fb7ff0000000000000ff")))
	f.Fuzz(func(t *testing.T, data []byte) {
		fuzz(t, Config{Format: FormatCBOR}, data)
		fuzz(t, Config{Format: FormatCBOR, NaN: NaNNull}, data)
	})
}

func FuzzNMEA(f *testing.F) {
	f.Add([]byte("$GPRMC,123519.50,A,4807.038,N,01131.000,E,022.4,084.4,230326,003.1,W"))
	f.Add([]byte("!AIVDM,2,1,3,B,55P5TL01VIaAL@7WKO@mBplU@<PDhh000000001S;AJ::4A80?4i@E53,0*3E\r\n!AIVDM,2,2,3,B,1@0000000000000,2*55"))
	f.Add([]byte("$GPGSV,2,2,06,01,40,083,46,02,17,308,"))
	f.Add([]byte("$GPZDA,201530.00,04,07,2026,00,00"))
	f.Add([]byte("!AIVDM,1,1,,A,H42O55i18tMET00000000000000,2"))
	f.Fuzz(func(t *testing.T, data []byte) { fuzz(t, Config{Format: FormatNMEA}, data) })
}

func FuzzOBIS(f *testing.F) {
	f.Add([]byte("/ISk5\\2EXAMPLE-1\r\n\r\n0-0:1.0.0(260131120000W)\r\n1-0:1.8.1(000123.456*kWh)\r\n!E836"))
	f.Add([]byte("1-0:99.97.0(2)(0-0:96.7.19)(101208152415S)(0000000240*s)"))
	f.Fuzz(func(t *testing.T, data []byte) { fuzz(t, Config{Format: FormatOBIS}, data) })
}

func FuzzSDI12(f *testing.F) {
	f.Add([]byte("0-0.5+12.3Iw_"))
	f.Fuzz(func(t *testing.T, data []byte) { fuzz(t, Config{Format: FormatSDI12}, data) })
}

func FuzzRegisters(f *testing.F) {
	f.Add([]byte(unhex("0103048000436662e9 0102030405060708090a0b0c")))
	cfg := Config{Format: FormatRegisters, Fields: []Field{
		{Name: "a", At: 3, Type: "f32", Order: "CDAB", Scale: "0.1", Offset: "1"}, {Name: "b", Type: "f64"}, {Name: "c", Type: "i64", Scale: "1e-3", Max: "5"},
		{Name: "d", Type: "bits", Length: 2}, {Name: "e", At: 7, Type: "string", Length: 4, Order: "BA", Unit: "x"}, {Name: "f", Type: "u16", Mask: "0x0ff0", NaN: []string{"0x0102"}},
		{Name: "g", Type: "epoch"}, {Name: "h", Type: "f64", At: 2, Scale: "1e10", Offset: "0.1"},
	}}
	f.Fuzz(func(t *testing.T, data []byte) {
		fuzz(t, cfg, data)
		fuzz(t, Config{Format: FormatRegisters, Fields: []Field{{Name: "b", Type: "bcd", Length: 2, Scale: "0.1"}}}, data)
	})
}

func FuzzDeviceTime(f *testing.F) {
	f.Add("2026-10-25 02:30:00")
	f.Add("1767225600.5")
	f.Fuzz(func(t *testing.T, text string) {
		for _, c := range []Time{{Field: "t"}, {Field: "t", Layout: "2006-01-02 15:04:05", Zone: "Europe/Berlin"}, {Field: "t", Layout: TimeUnixMS}} {
			clock, err := newClock(c)
			if err != nil {
				t.Fatal(err)
			}
			if at, note := clock.read(text); at.IsZero() && note == "" {
				t.Fatalf("%q is no time and nothing says so", text)
			}
		}
	})
}

func FuzzExpression(f *testing.F) {
	f.Add("{t: value.a * 2}", `{"a":1}`)
	f.Add("map(value.list, # + 1)", `{"list":[1,2.5,"x"]}`)
	f.Fuzz(func(t *testing.T, text, in string) {
		value, err := parseJSON([]byte(in), false)
		if err != nil || len(text) > 200 {
			return
		}
		tr, err := NewTransformer(Transform{Payload: text})
		if err != nil {
			return
		}
		parts, err := tr.Apply(Part{Value: value, Time: noon})
		if err != nil {
			reason(t, err, "transform")
			return
		}
		if _, err := Encode(parts[0].Value); err != nil {
			t.Fatalf("%s makes %v: %v", text, parts[0].Value, err)
		}
	})
}
