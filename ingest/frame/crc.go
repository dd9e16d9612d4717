package frame

// reflected computes a 16-bit CRC whose bits run from low to high.
func reflected(b []byte, crc, poly uint16) uint16 {
	for _, c := range b {
		crc ^= uint16(c)
		for range 8 {
			carry := crc & 1
			crc >>= 1
			if carry != 0 {
				crc ^= poly
			}
		}
	}
	return crc
}

// crcARC is the CRC-16/ARC of P1 telegrams and SDI-12.
func crcARC(b []byte) uint16 { return reflected(b, 0, 0xa001) }

// crcX25 is the CRC-16/X-25, the FCS-16 of RFC 1662.
func crcX25(b []byte) uint16 { return ^reflected(b, 0xffff, 0x8408) }

// crcXMODEM is the CRC-16/XMODEM of Davis stations, whose bits run from high to low.
func crcXMODEM(b []byte) uint16 {
	var crc uint16
	for _, c := range b {
		crc ^= uint16(c) << 8
		for range 8 {
			carry := crc & 0x8000
			crc <<= 1
			if carry != 0 {
				crc ^= 0x1021
			}
		}
	}
	return crc
}
