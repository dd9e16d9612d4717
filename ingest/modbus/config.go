package modbus

import "time"

// Defaults of the configuration.
const (
	DefaultTimeout      = 500 * time.Millisecond
	DefaultRetries      = 1
	DefaultBusyWait     = 200 * time.Millisecond
	DefaultDeadInterval = 30 * time.Second
	DefaultInterval     = 10 * time.Second
	DefaultBuffer       = 1 << 20 // bytes
)

// How requests travel.
const (
	ModeRTU        = "rtu"          // on a serial line
	ModeTCP        = "tcp"          // Modbus/TCP, with transaction ids
	ModeRTUOverTCP = "rtu_over_tcp" // the frames of a serial line through a TCP connection
)

// What Bus.Echo may say of an adapter that hears what it sends.
const (
	EchoAuto = "auto"
	EchoOn   = "on"
	EchoOff  = "off"
)

// The tables of a device.
const (
	TableHolding  = "holding"  // 16-bit registers, written too
	TableInput    = "input"    // 16-bit registers
	TableCoil     = "coil"     // bits, written too
	TableDiscrete = "discrete" // bits
)

// When a poll makes a record.
const (
	ReportEvery    = "every"
	ReportChange   = "change"
	ReportInterval = "interval"
)

// What a field of a record holds.
const (
	KeepDecoded = "decoded" // the value, and the raw bytes only where the value says not all
	KeepBoth    = "both"    // value and raw bytes
)

// Config is the modbus section of a source: one bus, and what is asked on it. One source owns the bus.
type Config struct {
	Bus     Bus      `yaml:"bus" doc:"the line or connection that this source has to itself"`
	Devices []Device `yaml:"devices" doc:"the devices on the bus"`
	Buffer  int64    `yaml:"buffer" unit:"bytes" doc:"how many bytes of records are kept in memory while the store takes none; what comes then is counted as overrun"`
}

// Bus says how the devices are reached.
type Bus struct {
	Mode         string        `yaml:"mode" enum:"rtu,tcp,rtu_over_tcp" doc:"rtu: a serial line; tcp: Modbus/TCP; rtu_over_tcp: serial frames through a TCP connection"`
	Port         string        `yaml:"port" doc:"rtu: device file; best the link below /dev/serial/by-id or by-path"`
	Baud         int           `yaml:"baud" doc:"rtu: bits per second"`
	DataBits     int           `yaml:"data_bits" doc:"rtu: data bits of a character; Modbus has 8"`
	Parity       string        `yaml:"parity" enum:"none,odd,even,mark,space" doc:"rtu: parity bit of a character"`
	StopBits     int           `yaml:"stop_bits" doc:"rtu: stop bits of a character, 1 or 2"`
	Address      string        `yaml:"address" doc:"tcp and rtu_over_tcp: host:port, such as 192.168.1.20:502"`
	Timeout      time.Duration `yaml:"timeout" doc:"how long a device may take to begin its reply"`
	Retries      int           `yaml:"retries" doc:"how often a read is tried again after no reply, a garbled one, or busy"`
	Delay        time.Duration `yaml:"delay" doc:"pause between a reply and the next request"`
	Gap          time.Duration `yaml:"gap" doc:"how long the line is idle before a request; 0: 3.5 characters"`
	Echo         string        `yaml:"echo" enum:"auto,on,off" doc:"rtu: whether the adapter hears what it sends; auto finds out"`
	BusyWait     time.Duration `yaml:"busy_wait" doc:"pause before a device that is busy is asked again"`
	DeadInterval time.Duration `yaml:"dead_interval" doc:"a device that does not answer is asked more and more seldom, down to this interval"`
}

// Device is one device and the fields that are read from it at once.
type Device struct {
	Name          string        `yaml:"name" doc:"name of the device, last token of its records' subject: letters, digits, - and _"`
	Unit          int           `yaml:"unit" doc:"unit number (slave address) on the bus"`
	Interval      time.Duration `yaml:"interval" doc:"how often the device is read"`
	AddressBase   int           `yaml:"address_base" doc:"number of the first register in the addresses below: 0, or 1 as in many manuals"`
	Order         string        `yaml:"order" enum:"ABCD,CDAB,BADC,DCBA" doc:"order of bytes of 32-bit values, A being the highest; 64-bit values go alike"`
	MaxBatch      int           `yaml:"max_batch" doc:"most registers in one request, up to 125; coils: 16 times as many, up to 2000"`
	MaxGap        int           `yaml:"max_gap" doc:"so many registers between two fields are read along rather than skipped"`
	Report        string        `yaml:"report" enum:"every,change,interval" doc:"whether each poll makes a record, only one with a change, or one per report_every"`
	ReportEvery   time.Duration `yaml:"report_every" doc:"interval: how often a record is made; change: at least how often, 0 for only on change"`
	Keep          string        `yaml:"keep" enum:"decoded,both" doc:"whether a field has its raw bytes only when its quality is not good, or always"`
	WriteMultiple bool          `yaml:"write_multiple" doc:"write a single coil or register as a list of one, for devices that know only that"`
	Fields        []Field       `yaml:"fields" doc:"what is read"`
}

// Field is one value of a device. Pointers are nil where nothing is configured.
type Field struct {
	Name      string   `yaml:"name" doc:"name of the value in the record"`
	Table     string   `yaml:"table" enum:"holding,input,coil,discrete" doc:"which table of the device it is in"`
	Address   int      `yaml:"address" doc:"its first register or coil, counted from address_base"`
	Type      string   `yaml:"type" enum:"u16,i16,u32,i32,u64,i64,f32,f64,bcd,string,bits,epoch,bool" doc:"how its registers are read; coils are bool"`
	Order     string   `yaml:"order" doc:"order of its bytes, one letter each, A being the highest; empty: as the device"`
	Len       int      `yaml:"len" doc:"registers of a bcd, string, bits or epoch; 0: as the type has"`
	Bit       *int     `yaml:"bit" doc:"bool in a register: number of the bit, 0 being the lowest"`
	Mask      string   `yaml:"mask" doc:"bits of the register that are the value, as 0x0ff0; they are shifted down"`
	Scale     float64  `yaml:"scale" doc:"factor"`
	Offset    float64  `yaml:"offset" doc:"added after scale"`
	ScaleFrom string   `yaml:"scale_from" doc:"field with the power of ten that the value is multiplied by, as SunSpec has"`
	Unit      string   `yaml:"unit" doc:"unit of measurement, for the record"`
	NaN       []string `yaml:"nan" doc:"raw values that mean not available, as 0x8000 or -32768, before scale; hexadecimal ones as wide as the type"`
	Min       *float64 `yaml:"min" doc:"least value that makes sense; less is marked out_of_range"`
	Max       *float64 `yaml:"max" doc:"greatest value that makes sense; more is marked out_of_range"`
	Deadband  float64  `yaml:"deadband" doc:"with report change: a difference up to this is none"`
	Labels    []string `yaml:"labels" doc:"bits: names of the bits, from the lowest on"`
	Writable  bool     `yaml:"writable" doc:"whether a command may set it by name"`
}

// SetDefaults sets the buffer.
func (c *Config) SetDefaults() { c.Buffer = DefaultBuffer }

// SetDefaults sets every key but port and address: a serial line at 9600 baud, 8 data bits, no parity, 1 stop bit.
func (b *Bus) SetDefaults() {
	*b = Bus{Mode: ModeRTU, Baud: 9600, DataBits: 8, Parity: "none", StopBits: 1, Timeout: DefaultTimeout, Retries: DefaultRetries,
		Echo: EchoAuto, BusyWait: DefaultBusyWait, DeadInterval: DefaultDeadInterval}
}

// SetDefaults sets every key but name, unit and fields.
func (d *Device) SetDefaults() {
	*d = Device{Interval: DefaultInterval, Order: "ABCD", MaxBatch: maxRegisters, Report: ReportEvery, Keep: KeepDecoded}
}

// SetDefaults sets a 16-bit holding register, taken as it is.
func (f *Field) SetDefaults() { *f = Field{Table: TableHolding, Type: "u16", Scale: 1} }
